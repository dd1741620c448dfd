"""``quiver tail``: print the messages of a topic. It changes nothing.

This module has the flags; ``tail_run`` reads.
"""

from __future__ import annotations

from typing import Annotated

import typer

from quiver.cli.support.session import UrlFlag
from quiver.cli.support.text import parse_position


def tail(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(help="The topic.", show_default=False)],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for new messages and print them too.")
    ] = False,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="Start position: earliest, latest, -1h, 2026-01-01T00:00 or an offset. Default: the "
            "last 10 messages of each partition.",
        ),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, help="Print only this partition.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Print only messages with this key.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="Stop after this many messages.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per message.")
    ] = False,
    url: UrlFlag = None,
) -> None:
    """Print the messages of a topic."""
    from quiver.cli.support.tail_run import Wanted, show  # noqa: PLC0415 - not for help

    wanted = Wanted(
        topic=topic,
        start=None if from_ is None else parse_position(from_, "--from"),
        partition=partition,
        key=None if key is None else key.encode(),
        follow=follow,
        limit=limit,
    )
    show(context, url, wanted, json=json)
