"""A setting of a topic or subscription: its type, unit, default, bounds and description.

Each field of ``TopicSettings``, ``SubscriptionSettings`` and the groups in them is ``Annotated`` with
``setting(...)``. This is the only definition. Validation, the client's checks, the HTTP schemas, the
options of commands and the reference page all read it with ``settings_of``.

The bounds are in the JSON schema of ``Meta``, not in its ``ge`` and ``le``. Msgspec enforces those
while it decodes: an error would be a protocol error that does not name the setting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import cache
from types import NoneType
from typing import Any, NamedTuple, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from quiver.errors import InvalidSetting
from quiver.model.units import duration_text, seconds, size_bytes, size_text

_MEASURED = (int, float, list)
_KINDS: dict[type, str] = {bool: "true or false", list: "a list", str: "text"}


class Unit(StrEnum):
    """What a number counts. A value with a unit may be given as text, such as ``"30s"``."""

    NONE = ""
    SECONDS = "s"
    MILLISECONDS = "ms"
    BYTES = "bytes"


def setting(
    description: str,
    least: float | None = None,
    most: float | None = None,
    *,
    unit: Unit = Unit.NONE,
    entries_max: int | None = None,
    length_max: int | None = None,
    pattern: str | None = None,
    without: str = "",
    example: str | None = None,
) -> Meta:
    """The annotation of a setting. ``without`` says what ``None`` means, where that is allowed.

    ``length_max`` and ``pattern`` are for HTTP schemas. The structs check their texts themselves.
    """
    bounds = {
        "minimum": least,
        "maximum": most,
        "minItems": 1 if entries_max else None,
        "maxItems": entries_max,
        "maxLength": length_max,
        "pattern": pattern,
    }
    return Meta(
        description=description,
        examples=None if example is None else [example],
        extra_json_schema={name: bound for name, bound in bounds.items() if bound is not None},
        extra={"unit": unit, "without": without},
    )


class Setting(Struct, frozen=True, kw_only=True):
    """One setting, or a group of them. ``name`` is the path from the top, as in ``retention.age``."""

    name: str
    type: Any
    default: Any
    meta: Meta

    @property
    def field(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def description(self) -> str:
        return self.meta.description or ""

    @property
    def unit(self) -> Unit:
        return Unit((self.meta.extra or {})["unit"])

    @property
    def without(self) -> str:
        return str((self.meta.extra or {})["without"])

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The types that a value may have."""
        return get_args(self.type) or (self.type,) if get_origin(self.type) is not list else (list,)

    @property
    def is_optional(self) -> bool:
        return NoneType in self.kinds

    @property
    def is_required(self) -> bool:
        return self.default is msgspec.NODEFAULT

    @property
    def is_number(self) -> bool:
        return int in self.kinds or float in self.kinds

    @property
    def is_whole(self) -> bool:
        return int in self.kinds

    @property
    def takes_text(self) -> bool:
        """Whether a number may also be text with its unit, in every interface."""
        return self.is_number and str in self.kinds

    @property
    def choices(self) -> type[StrEnum] | None:
        return next((kind for kind in self.kinds if _is_a(kind, StrEnum)), None)

    @property
    def group(self) -> type[Struct] | None:
        return next((kind for kind in self.kinds if _is_a(kind, Struct)), None)

    @property
    def stored_as(self) -> type:
        """The type of a value in a struct."""
        if self.is_number:
            return int if self.is_whole else float
        return self.choices or next(kind for kind in self.kinds if kind is not NoneType)

    @property
    def least(self) -> float | None:
        return self._schema.get("minimum")

    @property
    def most(self) -> float | None:
        return self._schema.get("maximum")

    @property
    def entries_max(self) -> int | None:
        return self._schema.get("maxItems")

    @property
    def length_max(self) -> int | None:
        return self._schema.get("maxLength")

    @property
    def pattern(self) -> str | None:
        return self._schema.get("pattern")

    @property
    def _schema(self) -> dict[str, Any]:
        return self.meta.extra_json_schema or {}

    # ------------------------------------------------------------------ values

    def checked(self, value: Any, name: str | None = None) -> Any:
        """The value in the form that is stored; ``InvalidSetting`` if it is not allowed.

        ``name`` is what the setting is called in an error, if not by its own name.
        """
        name = name or self.name
        if value is None:
            if not self.is_optional:
                raise InvalidSetting(f"{name} must not be none", setting=self.name)
            return None
        if self.choices is not None:
            return self._choice(self.choices, value, name)
        if self.is_number:
            number = self._number(value, name)
            self.check_range(number, most=self.most, name=name, given=value)
            return number
        if not isinstance(value, self.stored_as):
            kind = _KINDS[self.stored_as]
            raise InvalidSetting(f"{name} must be {kind}, not {_short(value)}", setting=self.name)
        if self.entries_max is not None and not 1 <= len(value) <= self.entries_max:
            raise InvalidSetting(
                f"{name} must have 1 to {self.entries_max:,} entries, not {len(value):,}",
                setting=self.name,
            )
        return value

    def check_range(
        self, value: float, *, most: float | None, name: str | None = None, given: Any = None
    ) -> None:
        """Refuse a number outside its bounds; another setting may give the greatest value.

        ``given`` is the value as somebody wrote it, for the error.
        """
        if self.least is not None and most is not None and not self.least <= value <= most:
            raise InvalidSetting(
                f"{name or self.name} must be between {self.shown(self.least)} and "
                f"{self.shown(most)}, not "
                f"{_short(given) if isinstance(given, str) else self.shown(value)}",
                setting=self.name,
            )

    def _choice(self, choices: type[StrEnum], value: Any, name: str) -> StrEnum:
        try:
            chosen: StrEnum = choices(str(value))
        except ValueError:
            raise InvalidSetting(
                f"{name} must be one of {', '.join(choices)}, not {_short(value)}",
                setting=self.name,
            ) from None
        return chosen

    def _number(self, value: Any, name: str) -> float:
        """A number, or text with a unit as a number of the setting's own unit."""
        if self.unit is Unit.SECONDS:
            number = self._read(seconds, value, name)
            return round(number) if self.is_whole else float(number)
        if self.unit is Unit.MILLISECONDS and not isinstance(value, int):
            return round(self._read(seconds, value, name) * 1000)
        if self.unit is Unit.BYTES:
            return int(self._read(size_bytes, value, name))
        allowed = int if self.is_whole else int | float
        if not isinstance(value, allowed) or isinstance(value, bool):
            kind = "a whole number" if self.is_whole else "a number"
            raise InvalidSetting(f"{name} must be {kind}, not {_short(value)}", setting=self.name)
        return value

    def _read(self, parse: Callable[[Any], float], value: Any, name: str) -> float:
        try:
            return parse(value)
        except InvalidSetting as error:
            raise InvalidSetting(f"{name}: {error.message}", setting=self.name) from None

    # ------------------------------------------------------------------ words

    def shown(self, value: Any) -> str:
        """The value as a person writes it."""
        if value is None or isinstance(value, bool):
            return "none" if value is None else str(value).lower()
        if not isinstance(value, int | float):
            return str(value)
        match self.unit:
            case Unit.SECONDS:
                return duration_text(value)
            case Unit.MILLISECONDS:
                return duration_text(value / 1000)
            case Unit.BYTES:
                return _shown_size(int(value))
            case _:
                return f"{value:,}" if isinstance(value, int) else f"{value:,g}"

    @property
    def bounds(self) -> str:
        """What a value may be, in words; empty if its type says it all."""
        if self.least is not None:
            return f"{self.shown(self.least)} to {self.shown(self.most)}"
        if self.entries_max is not None:
            return f"1 to {self.entries_max:,} entries"
        return "" if self.length_max is None else f"up to {self.length_max:,} characters"


def _is_a(kind: Any, parent: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, parent)


def _shown_size(size: int) -> str:
    text = size_text(size)
    return f"{size:,} byte{'' if size == 1 else 's'}" if text.isdigit() else text


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"


@cache
def fields_of(struct: type[Struct], group: str = "") -> tuple[Setting, ...]:
    """The settings of a struct, in their order. A group of settings is one of them."""
    found = []
    for field in msgspec.structs.fields(struct):
        of_type, meta = get_args(field.type)
        name = f"{group}.{field.name}" if group else field.name
        found.append(Setting(name=name, type=of_type, default=field.default, meta=meta))
    return tuple(found)


@cache
def settings_of(struct: type[Struct], group: str = "") -> tuple[Setting, ...]:
    """The settings of a struct and of the groups in it, in their order."""
    return tuple(
        inner
        for one in fields_of(struct, group)
        for inner in (settings_of(one.group, one.name) if one.group else (one,))
    )


def setting_of(struct: type[Struct], name: str) -> Setting:
    """A setting by its name, as in ``retention.age``."""
    return next(one for one in settings_of(struct) if one.name == name)


class _Expected(NamedTuple):
    """What a value is like that needs no change and no further check."""

    field: str
    kind: type
    is_optional: bool
    least: float
    most: float
    setting: Setting


@cache
def _expected_of(struct: type[Struct], group: str) -> tuple[_Expected, ...]:
    return tuple(
        _Expected(
            one.field,
            one.stored_as,
            one.is_optional,
            one.least or (1 if one.entries_max else 0),
            one.most or one.entries_max or 0,
            one,
        )
        for one in fields_of(struct, group)
        if one.group is None
    )


def check_fields(struct: Struct, group: str = "") -> None:
    """Check a new struct and put its values into the form that is stored.

    The structs inside it have checked themselves. A node decodes these structs for every topic and
    subscription, so a value that is right passes quickly.
    """
    for field, kind, is_optional, least, most, one in _expected_of(type(struct), group):
        value = getattr(struct, field)
        given = type(value)
        if given is kind:
            amount = len(value) if kind is list else value
            if kind not in _MEASURED or least <= amount <= most:
                continue
        elif is_optional and value is None:
            continue
        msgspec.structs.force_setattr(struct, field, one.checked(value))


def require_known(struct: type[Struct], names: Iterable[str], group: str = "") -> None:
    """Refuse names that are no settings of the struct."""
    known = struct.__struct_fields__
    unknown = sorted(str(name) for name in set(names).difference(known))
    if unknown:
        subject = f"{group} has no setting" if group else "there is no setting"
        listed = f"{'its' if group else 'the'} settings are {', '.join(known)}"
        raise InvalidSetting(
            f"{subject} {unknown[0][:80]!r}; {listed}",
            setting=f"{group}.{unknown[0][:80]}" if group else unknown[0][:80],
        )


def within(name: str, value: float | None, least: float, most: float) -> None:
    """Refuse a number outside its bounds; ``None`` is allowed."""
    if value is not None and not least <= value <= most:
        raise InvalidSetting(
            f"{name} must be between {least:,} and {most:,}, not {value:,}", setting=name
        )
