"""One setting: its name, type, unit, default, bounds and description, read from a struct's field.

The unit is part of the name. A name with the word ``bytes`` is a size and may be written "64MiB". A
name that ends in ``_s`` is a time and may be written "10m". Mistakes raise ``InvalidSetting``.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from quiver.config.address import Address, parse_address
from quiver.errors import InvalidSetting
from quiver.model.units import seconds, size_bytes

ENVIRONMENT_PREFIX = "QUIVER_"
OFF = "off"
"""The text for an address that is turned off."""
_KINDS = {bool: "true or false", int: "a number", float: "a number", str: "text"}


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """``name`` is the path from the top, as in ``limits.connections_max``."""

    name: str
    type: Any
    default: Any
    meta: msgspec.Meta

    @property
    def field(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def section(self) -> str:
        return self.name.rpartition(".")[0]

    @property
    def environment(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.replace(".", "_").upper()

    @property
    def description(self) -> str:
        return self.meta.description or ""

    @property
    def is_size(self) -> bool:
        return "bytes" in self.field.split("_")

    @property
    def is_time(self) -> bool:
        return self.field.endswith("_s")

    @property
    def is_address(self) -> bool:
        return self.type is Address or self.may_be_off

    @property
    def may_be_off(self) -> bool:
        return bool(self.type == Address | None)

    @property
    def choices(self) -> tuple[str, ...]:
        return get_args(self.type) if get_origin(self.type) is Literal else ()

    def from_text(self, text: str) -> Any:
        """The value that a variable or a flag holds."""
        if self.type is bool and text in ("true", "false"):
            return text == "true"
        if self.type is int and not self.is_size and not self.is_time:
            try:
                return self.from_toml(int(text))
            except ValueError:
                raise self._wrong(text) from None
        return self.from_toml(text)

    def from_toml(self, value: Any) -> Any:
        """The value as a file gives it, where numbers are numbers."""
        checked = self._typed(value)
        self.check(checked, value)
        return checked

    def check(self, value: Any, given: Any = None) -> None:
        """Refuse a value that is outside the bounds. ``given`` is how somebody wrote it."""
        if self.choices and value not in self.choices:
            raise InvalidSetting(
                f"{self.name} must be one of {', '.join(self.choices)}, not {shown(value)}"
            )
        if self.meta.pattern is not None and not re.fullmatch(self.meta.pattern, value):
            raise InvalidSetting(f"{self.name} cannot be {shown(value)}. {self.description}")
        if isinstance(value, str) and not value.isprintable():
            raise InvalidSetting(f"{self.name} cannot be {shown(value)}: it has control characters")
        if self.meta.min_length is not None and len(value) < self.meta.min_length:
            raise InvalidSetting(f"{self.name} must not be empty")
        if self.meta.max_length is not None and len(value) > self.meta.max_length:
            raise InvalidSetting(
                f"{self.name} may have {self.meta.max_length:,} characters at most"
            )
        least, most = self.meta.ge, self.meta.le
        if least is not None and most is not None and not least <= value <= most:
            raise InvalidSetting(
                f"{self.name} must be between {self.shown(least)} and {self.shown(most)}, "
                f"not {shown(given) if isinstance(given, str) else self.shown(value)}"
            )

    def shown(self, value: Any) -> str:
        """The value as a person would write it in a file."""
        if self.is_size and isinstance(value, int):
            return shown_size(value)
        if self.is_time and isinstance(value, int | float):
            return f"{value:,g} s"
        return f"{value:,}" if isinstance(value, int | float) else str(value)

    def _typed(self, value: Any) -> Any:
        if isinstance(value, str):
            if self.is_size:
                return self._said(size_bytes, value)
            if self.is_time:
                return self._time(value)
            if self.is_address:
                return (
                    None if value == OFF and self.may_be_off else self._said(parse_address, value)
                )
        if self.choices:
            return value
        if self.type is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if type(value) is not self.type:
            raise self._wrong(value)
        return value

    def _time(self, text: str) -> float:
        duration_s: float = self._said(seconds, text)
        if self.type is not int:
            return duration_s
        if not duration_s.is_integer():
            raise InvalidSetting(f"{self.name} must be whole seconds, not {shown(text)}")
        return int(duration_s)

    def _said(self, parse: Any, text: str) -> Any:
        try:
            return parse(text)
        except InvalidSetting as error:
            raise InvalidSetting(f"{self.name}: {error.message}") from None

    def _wrong(self, value: Any) -> InvalidSetting:
        if self.is_size:
            expected = "a size such as 1048576 or '64MiB'"
        elif self.is_time:
            expected = "a time such as 30 or '5m'"
        elif self.is_address:
            expected = "an address such as '127.0.0.1:7401'"
        elif self.type is int:
            expected = "a whole number"
        else:
            expected = _KINDS[self.type]
        return InvalidSetting(f"{self.name} must be {expected}, not {shown(value)}")


def shown(value: Any) -> str:
    """A value someone gave, short enough for one line."""
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def shown_size(size: int) -> str:
    for unit, power in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size and size % (1 << power) == 0:
            return f"{size >> power:,} {unit}"
    return f"{size:,} bytes"


@cache
def settings_of(struct: type[msgspec.Struct], section: str = "") -> tuple[Setting, ...]:
    """Every setting in the struct and in the structs inside it, in their order."""
    hints = get_type_hints(struct, include_extras=True)
    found: list[Setting] = []
    for field in msgspec.structs.fields(struct):
        name = f"{section}.{field.name}" if section else field.name
        hint = hints[field.name]
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            found += settings_of(hint, name)
        elif get_origin(hint) not in (tuple, dict):  # those have tables of their own
            of_type, meta = get_args(hint)
            found.append(Setting(name=name, type=of_type, default=field.default, meta=meta))
    return tuple(found)


def check_fields(struct: msgspec.Struct) -> None:
    """Refuse a struct with a field outside its bounds; structs inside it have checked themselves."""
    for setting in settings_of(type(struct)):
        if not setting.section:
            setting.check(getattr(struct, setting.name))
