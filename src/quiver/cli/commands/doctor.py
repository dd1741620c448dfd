"""``quiver doctor``: check a node's settings and its machine, or a node that runs.

It changes nothing. Without ``--url`` it needs no running node, and reads the settings as ``quiver
serve`` does. With it, it looks at that node, and not at this machine.
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
from quiver.formats import release

_TIMEOUT = "10s"
NOBODY = "nobody"
"""A token that no node has made: a node without authentication does not look at it."""


def doctor(
    context: typer.Context,
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
    planned: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="VERSION",
            help="Check whether this older version of Quiver could open the data folder.",
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 for warnings too.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", help="Check the node that runs there instead."),
    ] = None,
) -> None:
    """Check settings and machine: security, data folder, disk, clock, limits, ports and versions."""
    if planned is not None and not release(planned):
        raise typer.BadParameter(f"--for takes a version such as 0.1.0, not {planned!r}")
    url = url or _url_before_the_name(context)
    if url is not None and (config or data or settings or planned):
        raise typer.BadParameter("--url looks at a running node: leave out its settings")
    found = _of_settings(config, data, settings or [], planned) if url is None else _of_node(url)
    if json:
        print_json(found)
    else:
        _print(found)
    bad = {Verdict.FAILURE, Verdict.WARNING} if strict else {Verdict.FAILURE}
    if any(one.verdict in bad for one in found):
        raise typer.Exit(ExitCode.FAILED)


def _url_before_the_name(context: typer.Context) -> str | None:
    """As other commands take it. ``QUIVER_URL`` alone does not mean that node: this machine is looked at."""
    root = context.find_root()
    source = root.get_parameter_source("url")
    if source is None or source.name != "COMMANDLINE":
        return None
    return root.params["url"] or None


def _of_settings(
    config: str | None, data: str | None, settings: list[str], planned: str | None
) -> list[Finding]:
    from quiver.cli.doctor.checks import examine  # noqa: PLC0415 - help does not need it

    flags = flags_of({"data": data}, settings)
    loaded = load_config(path=config, environment=os.environ, flags=flags)
    return list(examine(loaded.config, planned))


def _of_node(url: str) -> list[Finding]:
    from quiver import Client  # noqa: PLC0415 - as above
    from quiver.cli.doctor.running import examine_running  # noqa: PLC0415

    def anonymous() -> Client:
        return Client(url, token=NOBODY, timeout=_TIMEOUT)

    with Client(url, timeout=_TIMEOUT) as client:
        return list(examine_running(client, anonymous, url))


def _print(found: list[Finding]) -> None:
    print_table(
        ("CHECK", "VERDICT", "FOUND"), [(one.check, one.verdict, one.message) for one in found]
    )
    advice = [one for one in found if one.advice]
    if advice:
        print_line("")
    for one in advice:
        print_line(f"{one.check}: {one.advice}")
