"""A group of commands that are loaded when they are used.

Help of the group shows each command's name and sentence, and needs no more than these. Loading the
commands, and building every flag that they have, would be the slowest part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand

from quiver.cli.support.plain_group import PlainGroup


class LazyCommand(NamedTuple):
    """Where a command is, and what the help of its group says of it."""

    home: str
    """``module:name``. The name is of a function, or of a ``typer.Typer`` with commands of its own."""
    help: str
    is_hidden: bool = False

    def outline(self, name: str) -> TyperCommand:
        """Enough of the command for the help of its group."""
        return TyperCommand(name, help=self.help, hidden=self.is_hidden)

    def load(self, name: str) -> Any:
        module, _, attribute = self.home.partition(":")
        found = getattr(import_module(module), attribute)
        if isinstance(found, typer.Typer):
            command: Any = typer.main.get_group(found)
        else:
            alone = typer.Typer(add_completion=False)
            alone.command(hidden=self.is_hidden)(found)
            command = typer.main.get_command(alone)
        command.name = name
        return command


def lazy_group(commands: Mapping[str, LazyCommand]) -> type[PlainGroup]:
    """The class of a group with these commands, before its own."""

    class LazyGroup(PlainGroup):
        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes)
            outlines = {name: one.outline(name) for name, one in commands.items()}
            self.commands = {**outlines, **self.commands}
            self._not_loaded = dict(commands)

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            if (lazy := self._not_loaded.pop(cmd_name, None)) is not None:
                self.commands[cmd_name] = lazy.load(cmd_name)
            return super().get_command(ctx, cmd_name)

        def format_help(self, ctx: Any, formatter: Any) -> None:
            not_loaded, self._not_loaded = self._not_loaded, {}
            try:
                super().format_help(ctx, formatter)
            finally:
                self._not_loaded = not_loaded

    return LazyGroup
