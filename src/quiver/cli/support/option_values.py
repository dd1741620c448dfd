"""Flags as settings. A flag that is not given is left out; an error names its flag."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from quiver.errors import InvalidSetting
from quiver.model.units import seconds

MISSING = object()


def given(**values: Any) -> dict[str, Any]:
    """Those that are not ``MISSING``."""
    return {name: value for name, value in values.items() if value is not MISSING}


def read(
    values: Mapping[str, Any], name: str, parse: Callable[[Any], Any], *, clears: bool = False
) -> Any:
    """The value of a command's flag; ``MISSING`` if it was not given or the command has no such flag.

    With ``clears``, the word ``none`` removes the setting.
    """
    value = values.get(name)
    if value is None:
        return MISSING
    if clears and value.lower() == "none":
        return None
    try:
        return parse(value)
    except InvalidSetting as error:
        raise InvalidSetting(f"--{name.replace('_', '-')}: {error.message}") from None


def whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidSetting(f"{text!r} is not a whole number") from None


def milliseconds(text: str) -> int:
    return round(seconds(text) * 1000)


def whole_seconds(text: str) -> int:
    return round(seconds(text))
