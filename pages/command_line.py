"""``docs/reference/commands.md``: every command, its arguments and its options, as ``--help`` has them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import typer
from typer.core import TyperArgument, TyperGroup

from quiver.cli.main import app

_PAGE = """\
# Every command

This page is generated from the program (`make pages`). [The command line](cli.md) has common options, exit
codes and examples. Each command has `--help`.
"""
_DETAILS = re.compile(r"\s*\[(?P<details>[^\]]*)\]$")


class Command(NamedTuple):
    """A command, or a group of some, and how it is called."""

    words: tuple[str, ...]
    command: Any
    context: typer.Context

    @property
    def path(self) -> str:
        return " ".join(self.words)

    @property
    def is_group(self) -> bool:
        return isinstance(self.command, TyperGroup)

    @property
    def flags(self) -> set[str]:
        return {flag for one in self.command.params for flag in (*one.opts, *one.secondary_opts)}


def commands() -> Iterator[Command]:
    """Every command and every group, a group before what is in it."""
    root = typer.main.get_command(app)
    yield from _within(("quiver",), root, None)


def _within(
    words: tuple[str, ...], command: Any, parent: typer.Context | None
) -> Iterator[Command]:
    context = typer.Context(command, info_name=words[-1], parent=parent)
    yield Command(words, command, context)
    if isinstance(command, TyperGroup):
        for name in sorted(command.list_commands(context)):
            yield from _within((*words, name), command.get_command(context, name), context)


def reference_page() -> str:
    return _PAGE + "".join(_section(one) for one in commands())


def _section(one: Command) -> str:
    usage = " ".join((one.path, *one.command.collect_usage_pieces(one.context)))
    lines = ["", f"## `{one.path}`", "", (one.command.help or "").strip(), "", f"    {usage}", ""]
    rows = [_row(param, one.context) for param in one.command.params if not param.hidden]
    if rows:
        lines += ["| | | |", "| --- | --- | --- |", *rows]
    return "\n".join(lines).rstrip("\n") + "\n"


def _row(param: Any, context: typer.Context) -> str:
    names, told = param.get_help_record(context)
    found = _DETAILS.search(told)
    details = found["details"] if found else ""
    if isinstance(param, TyperArgument):
        names = names.upper().partition(" ")[0]
    text = told[: found.start()] if found else told
    return f"| `{_cell(names)}` | {_cell(text)} | {_cell(details)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
