"""``quiver top``: watch a node live on the terminal, or print one sample.

This module has the flags; ``quiver.cli.top`` samples and draws.
"""

from __future__ import annotations

from typing import Annotated

import typer

from quiver.cli.support.option_values import MISSING, read
from quiver.cli.support.output import Json
from quiver.cli.support.session import UrlFlag
from quiver.errors import InvalidSetting
from quiver.model.units import seconds

INTERVAL_S_MIN, INTERVAL_S_MAX = 0.5, 3600.0


def top(
    context: typer.Context,
    interval: Annotated[
        str, typer.Option("--interval", metavar="TIME", help="Time between samples, as in 5s.")
    ] = "1s",
    sort: Annotated[
        str | None,
        typer.Option(
            "--sort",
            metavar="COLUMN",
            help="Column to sort by: lag, oldest, name, …",
        ),
    ] = None,
    topics: Annotated[
        bool, typer.Option("--topics", help="Show topics first instead of queues.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Print one sample and exit.")] = False,
    json: Json = False,
    url: UrlFlag = None,
) -> None:
    """Watch a node: rates, lag, age of the oldest message, latency and alerts."""
    from quiver.cli.top.run import show  # noqa: PLC0415 - not for help
    from quiver.cli.top.view import View  # noqa: PLC0415

    pause_s = read({"interval": interval}, "interval", seconds)
    assert pause_s is not MISSING, "it has a default"
    if not INTERVAL_S_MIN <= pause_s <= INTERVAL_S_MAX:
        raise InvalidSetting(f"--interval must be between 500ms and 1h, not {interval}")
    show(context, url, View.of(topics=topics, sort=sort), pause_s, once=once, json=json)
