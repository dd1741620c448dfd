"""Help that shows a flag as ``--json``, not as ``--json <bool>``."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup, TyperOption


class PlainGroup(TyperGroup):
    """A group whose help, and that of its commands, shows no type for flags."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_flag_types(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is not None and not isinstance(command, PlainGroup):
            _make_plain(command, ctx)
        return command


def _make_plain(command: Any, ctx: Any) -> None:
    _without_flag_types(command.get_params(ctx))
    for inner in getattr(command, "commands", {}).values():
        _make_plain(inner, ctx)


def _without_flag_types(params: list[Any]) -> list[Any]:
    for one in params:
        if isinstance(one, TyperOption) and one.is_flag:
            one.metavar = ""
    return params
