"""``quiver consume``: receive the messages of a queue or subscription, print and acknowledge them.

The receiving is in ``consume_run``; here are the flags.
"""

from __future__ import annotations

from typing import Annotated

import typer

from quiver.cli.support.option_values import MISSING, read
from quiver.cli.support.session import UrlFlag
from quiver.model.units import seconds


def consume(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The queue or subscription.", show_default=False)],
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="End after so many messages.")
    ] = None,
    wait: Annotated[
        str | None,
        typer.Option("--wait", metavar="TIME", help="End when nothing came for so long."),
    ] = None,
    visibility: Annotated[
        str | None,
        typer.Option("--visibility", metavar="TIME", help="How long to hold what is received."),
    ] = None,
    no_ack: Annotated[
        bool, typer.Option("--no-ack", help="Only look: give everything back at the end.")
    ] = False,
    nack: Annotated[
        bool, typer.Option("--nack", help="Reject them, so that they are tried again.")
    ] = False,
    error: Annotated[
        str | None, typer.Option("--error", metavar="TEXT", help="With --nack: why.")
    ] = None,
    delay: Annotated[
        str | None,
        typer.Option("--delay", metavar="TIME", help="With --nack: when to try again, as in 1m."),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per message.")
    ] = False,
    url: UrlFlag = None,
) -> None:
    """Receive messages, print them and acknowledge them, until interrupted."""
    if nack and no_ack:
        raise typer.BadParameter("--nack and --no-ack exclude each other", ctx=context)
    if not nack and (error is not None or delay is not None):
        raise typer.BadParameter("--error and --delay are for --nack", ctx=context)
    from quiver.cli.support.consume_run import Settling, Wanted, run  # noqa: PLC0415 - not for help

    wanted = Wanted(
        name=name,
        limit=limit,
        wait_s=_seconds(context, "wait"),
        visibility_s=_seconds(context, "visibility"),
        settling=Settling.NACK if nack else Settling.NONE if no_ack else Settling.ACK,
        error=error,
        delay_s=_seconds(context, "delay"),
        json=json,
    )
    run(context, url, wanted)


def _seconds(context: typer.Context, name: str) -> float | None:
    value = read(context.params, name, seconds)
    return None if value is MISSING else float(value)
