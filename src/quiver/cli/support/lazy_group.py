"""Command groups that are built only when one of their commands is used.

Typer builds every flag of every command before it reads the command line. With hundreds of flags
that would be the slowest part of ``quiver --help``.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import typer
from typer.core import TyperGroup

from quiver.cli.support.plain_help import PlainGroup


def add_noun(app: typer.Typer, noun: typer.Typer, name: str) -> None:
    """Like ``app.add_typer(noun, name=name)``, but built lazily. The group's callback is kept."""

    class Noun(PlainGroup):
        @cached_property
        def _verbs(self) -> TyperGroup:
            made = typer.main.get_command(noun)
            assert isinstance(made, TyperGroup), "a noun has several verbs"
            return made

        def list_commands(self, ctx: Any) -> list[str]:
            return self._verbs.list_commands(ctx)

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            self.commands = self._verbs.commands
            return super().get_command(ctx, cmd_name)

    app.add_typer(
        typer.Typer(
            cls=Noun,
            no_args_is_help=True,
            help=noun.info.help,
            callback=noun.info.callback,
            invoke_without_command=noun.info.invoke_without_command,
            add_completion=False,
        ),
        name=name,
    )
