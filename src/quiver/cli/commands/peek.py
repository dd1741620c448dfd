"""``quiver peek``: print pending messages of a queue or subscription without receiving them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from quiver.cli.support.exit_codes import tell
from quiver.cli.support.output import print_line
from quiver.cli.support.session import UrlFlag, connected
from quiver.cli.support.text import plural
from quiver.model.subscription import RECEIVE_MAX


class State(StrEnum):
    READY = "ready"
    DELAYED = "delayed"
    LEASED = "leased"


def peek(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The queue or subscription.", show_default=False)],
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=RECEIVE_MAX, help="Most messages to print.")
    ] = 10,
    state: Annotated[
        list[State] | None,
        typer.Option("--state", help="Print only messages in this state. May be repeated."),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per message.")
    ] = False,
    url: UrlFlag = None,
) -> None:
    """Print the first pending messages without receiving them."""
    from quiver.cli.support.message_text import json_line, text_line  # noqa: PLC0415 - not for help

    with connected(context, url) as client:
        messages = client.peek(name, limit, states=[*dict.fromkeys(state or State)])
    for message in messages:
        counted = plural(message.deliveries, "delivery")
        print_line(
            json_line(
                message, topic=message.topic, state=message.state, deliveries=message.deliveries
            )
            if json
            else text_line(message, message.state, counted, names_topic=True)
        )
    if not messages and not json:
        tell(
            f"{name} has no messages in this state" if state else f"{name} has no pending messages"
        )
