"""Flags that set something about a topic or subscription, one for each setting.

Names, types, bounds and help come from the settings themselves (``quiver.model.setting``). A flag that
is not given changes nothing. Times and sizes are text such as ``30s`` and ``10GB``; the word ``none``
removes a setting that may be missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from inspect import Parameter
from types import NoneType
from typing import Annotated, Any

import msgspec
import typer

from quiver.errors import InvalidSetting
from quiver.model.setting import Setting, Unit, settings_of

_METAVARS = {Unit.SECONDS: "TIME", Unit.MILLISECONDS: "TIME", Unit.BYTES: "SIZE"}


class SettingFlag(msgspec.Struct, frozen=True):
    """The flag of one setting. ``none`` says what the text ``none`` means, where it is allowed.

    ``called`` is the flag's name, if it is not that of the setting.
    """

    setting: Setting
    metavar: str | None = None
    none: str = ""
    called: str = ""

    @property
    def parameter(self) -> str:
        """The command's parameter, as in ``retention_age``. A time has its unit in the text."""
        name = self.setting.name.replace(".", "_")
        is_time = self.setting.unit in (Unit.SECONDS, Unit.MILLISECONDS)
        return name.removesuffix(f"_{self.setting.unit}") if is_time else name

    @property
    def flag(self) -> str:
        return "--" + (self.called or self.parameter.replace("_", "-"))

    @property
    def printed(self) -> str:
        """The parameter by the name that descriptions print, which has the unit of a time."""
        return self.setting.name.replace(".", "_")

    def declared_as_printed(self) -> Parameter:
        """The same flag by that name; help does not show it."""
        names = "--" + self.printed.replace("_", "-")
        option = typer.Option(names, metavar=self.metavar, hidden=True)
        return Parameter(
            self.printed,
            Parameter.KEYWORD_ONLY,
            default=None,
            annotation=_annotated(str | None, option),
        )

    def declared(self, *, is_new: bool) -> Parameter:
        """The parameter of a command that has the flag; its help has the default if ``is_new``."""
        names = f"{self.flag}/--no-{self.flag[2:]}" if self._type is bool else self.flag
        option = typer.Option(names, metavar=self.metavar, help=self.help(is_new=is_new))
        return Parameter(
            self.parameter,
            Parameter.KEYWORD_ONLY,
            default=None,
            annotation=_annotated(self._type | None, option),
        )

    @property
    def _type(self) -> Any:
        if self.setting.unit is not Unit.NONE or self.none:
            return str
        (kind,) = (kind for kind in self.setting.kinds if kind is not NoneType)
        return kind

    def help(self, *, is_new: bool) -> str:
        one = self.setting
        sentences = [one.description]
        if one.bounds:
            sentences.append(f"{one.bounds[0].upper()}{one.bounds[1:]}.")
        if self.none:
            sentences.append(f"none: {self.none}.")
        if is_new and not one.is_required:
            sentences.append(f"Default: {one.shown(one.default)}.")
        return " ".join(sentences)

    def read(self, value: Any) -> Any:
        """What the flag sets, checked. An error names the flag."""
        if self.none and value.lower() == "none":
            return None
        if self.setting.is_number and self.setting.unit is Unit.NONE and isinstance(value, str):
            value = self._number(value)
        return self.setting.checked(value, self.flag)

    def _number(self, text: str) -> int:
        try:
            return int(text)
        except ValueError:
            raise InvalidSetting(f"{self.flag}: {text!r} is not a whole number") from None


def flags_of(
    struct: type[msgspec.Struct], metavars: Mapping[str, str], **none: str
) -> tuple[SettingFlag, ...]:
    """The flags for the settings of a struct. ``metavars`` and ``none`` are for some of them."""
    return tuple(
        SettingFlag(
            one,
            metavars.get(one.name) or _METAVARS.get(one.unit) or _metavar(one),
            one.without or none.get(one.name.replace(".", "_"), ""),
        )
        for one in settings_of(struct)
    )


def _metavar(one: Setting) -> str | None:
    if not one.is_optional:
        return None
    return "COUNT" if one.choices is None else f"<{'|'.join([*one.choices, 'none'])}>"


def declared(flags: Iterable[SettingFlag], *, is_new: bool) -> list[Parameter]:
    """Parameters for ``with_flags``: those of a command that creates something if ``is_new``."""
    flags = list(flags)
    return [
        *(flag.declared(is_new=is_new) for flag in flags),
        *(flag.declared_as_printed() for flag in flags if flag.printed != flag.parameter),
    ]


def given(flags: Iterable[SettingFlag], values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by name, from a command's parameters; a group has what was given of it."""
    found: dict[str, Any] = {}
    for flag in flags:
        value = values.get(flag.parameter)
        if value is None and flag.printed != flag.parameter:
            value = _in_own_unit(values.get(flag.printed))
        if value is not None:
            group, _, field = flag.setting.name.rpartition(".")
            place = found.setdefault(group, {}) if group else found
            place[field] = flag.read(value)
    return found


def _in_own_unit(text: str | None) -> Any:
    """A number without a unit is in the unit that the name of its flag has."""
    return int(text) if text is not None and text.isascii() and text.isdigit() else text


def _annotated(of_type: Any, option: Any) -> Any:
    return Annotated[of_type, option]
