"""Reads the values of flags. An error names its flag."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from quiver.errors import InvalidSetting

MISSING = object()


def read(values: Mapping[str, Any], name: str, parse: Callable[[Any], Any]) -> Any:
    """The value of a command's flag; ``MISSING`` if it was not given or the command has no such flag."""
    value = values.get(name)
    if value is None:
        return MISSING
    try:
        return parse(value)
    except InvalidSetting as error:
        raise InvalidSetting(f"--{name.replace('_', '-')}: {error.message}") from None
