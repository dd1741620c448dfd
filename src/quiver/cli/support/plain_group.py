"""A group whose commands show a flag as ``--json``, not as ``--json <bool>``, and take text as it is.

typer checks every value with pydantic, text too. To load it takes a third of a command's start, and nine
megabytes in a node. Most values are text or left out and need no check: pydantic comes with the first
other value.
"""

from __future__ import annotations

from typing import Any, Self

from typer.core import TyperGroup, TyperOption


class PlainGroup(TyperGroup):
    """A group whose parameters, and those of its commands, are plain."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _plain(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is not None and not isinstance(command, PlainGroup):
            _make_plain(command, ctx)
        return command


class _PlainValue:
    """Takes text of a parameter as it is, and leaves other values to typer."""

    def __init__(self, checked: Any) -> None:
        self._checked = checked

    def __call__(self) -> Self:
        """In place of ``get_runtime_param``, which returns what checks a value."""
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        kind = param.type_descriptor.annotation
        is_list = param.multiple or param.nargs == -1
        if value is None:
            return () if is_list else None
        if kind is str and not is_list and isinstance(value, str):
            return value
        if kind == list[str] and is_list and not isinstance(value, str):
            return list(value)
        return self._checked().coerce(value, param=param, ctx=ctx)


def _make_plain(command: Any, ctx: Any) -> None:
    _plain(command.get_params(ctx))
    for inner in getattr(command, "commands", {}).values():
        _make_plain(inner, ctx)


def _plain(params: list[Any]) -> list[Any]:
    for one in params:
        if isinstance(one, TyperOption) and one.is_flag:
            one.metavar = ""
        checked = getattr(one, "get_runtime_param", None)
        if checked is not None and not isinstance(checked, _PlainValue):
            one.get_runtime_param = _PlainValue(checked)
    return params
