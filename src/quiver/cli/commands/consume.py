"""``quiver consume``: receive messages of a queue or subscription, print and acknowledge them.

This module has the flags; ``consume_run`` receives.
"""

from __future__ import annotations

from typing import Annotated

import typer

from quiver.cli.support.option_values import MISSING, read
from quiver.cli.support.session import UrlFlag
from quiver.model.units import seconds

Name = Annotated[str, typer.Argument(help="The queue or subscription.", show_default=False)]
Limit = Annotated[
    int | None, typer.Option("--limit", "-n", min=1, help="Stop after this many messages.")
]
Wait = Annotated[
    str | None,
    typer.Option(
        "--wait", metavar="TIME", help="Stop when no message arrived for this long, as in 5s."
    ),
]
Visibility = Annotated[
    str | None,
    typer.Option(
        "--visibility",
        metavar="TIME",
        help="How long a received message is hidden from other consumers, as in 30s. Default: "
        "the queue's.",
    ),
]
NoAck = Annotated[
    bool, typer.Option("--no-ack", help="Print only: return all messages at the end.")
]
Nack = Annotated[
    bool,
    typer.Option("--nack", help="Report the messages as failed: they are delivered again."),
]
Reject = Annotated[bool, typer.Option("--reject", help="Make the messages dead letters at once.")]
Error = Annotated[
    str | None,
    typer.Option("--error", metavar="TEXT", help="With --nack or --reject: error text to store."),
]
Delay = Annotated[
    str | None,
    typer.Option(
        "--delay",
        metavar="TIME",
        help="With --nack: time until the next delivery, as in 1m.",
    ),
]
PrintJson = Annotated[bool, typer.Option("--json", help="Print one JSON object per message.")]


def consume(
    context: typer.Context,
    name: Name,
    limit: Limit = None,
    wait: Wait = None,
    visibility: Visibility = None,
    no_ack: NoAck = False,
    nack: Nack = False,
    reject: Reject = False,
    error: Error = None,
    delay: Delay = None,
    json: PrintJson = False,
    url: UrlFlag = None,
) -> None:
    """Receive messages, print and acknowledge them, until Ctrl-C."""
    if nack + reject + no_ack > 1:
        raise typer.BadParameter("give only one of --nack, --reject and --no-ack", ctx=context)
    if error is not None and not (nack or reject):
        raise typer.BadParameter("--error needs --nack or --reject", ctx=context)
    if delay is not None and not nack:
        raise typer.BadParameter("--delay needs --nack", ctx=context)
    from quiver.cli.support.consume_run import Settlement, Wanted, run  # noqa: PLC0415 - not for help

    flags = {Settlement.NACK: nack, Settlement.REJECT: reject, Settlement.NONE: no_ack}
    wanted = Wanted(
        name=name,
        limit=limit,
        wait_s=_seconds(context, "wait"),
        visibility_s=_seconds(context, "visibility"),
        settlement=next((one for one, given in flags.items() if given), Settlement.ACK),
        error=error,
        delay_s=_seconds(context, "delay"),
        json=json,
    )
    run(context, url, wanted)


def _seconds(context: typer.Context, name: str) -> float | None:
    value = read(context.params, name, seconds)
    return None if value is MISSING else float(value)
