"""``quiver doctor``: check a node's settings and its machine.

It changes nothing and needs no running node. It reads the settings as ``quiver serve`` does.
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from quiver.cli.commands.serve import flags_of
from quiver.cli.doctor.finding import Finding, Verdict
from quiver.cli.support.exit_codes import ExitCode
from quiver.cli.support.output import print_json, print_line, print_table
from quiver.config import load_config


def doctor(
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            metavar="FILE",
            envvar="QUIVER_CONFIG",
            help="Read settings from this TOML file.",
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", metavar="DIR", help="Data folder of the node.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Set any setting. May be repeated."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 for warnings too.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check settings and machine: security, disk, clock, limits, ports and versions."""
    from quiver.cli.doctor.checks import examine  # noqa: PLC0415 - help does not need it

    flags = flags_of({"data": data}, settings or [])
    loaded = load_config(path=config, environment=os.environ, flags=flags)
    found = list(examine(loaded.config))
    if json:
        print_json(found)
    else:
        _print(found)
    bad = {Verdict.FAILURE, Verdict.WARNING} if strict else {Verdict.FAILURE}
    if any(one.verdict in bad for one in found):
        raise typer.Exit(ExitCode.FAILED)


def _print(found: list[Finding]) -> None:
    print_table(
        ("CHECK", "VERDICT", "FOUND"), [(one.check, one.verdict, one.message) for one in found]
    )
    advice = [one for one in found if one.advice]
    if advice:
        print_line("")
    for one in advice:
        print_line(f"{one.check}: {one.advice}")
