"""``quiver message``: show a message by its id, and its state in each subscription."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from quiver.cli.support.exit_codes import tell
from quiver.cli.support.output import Json, print_json, print_line, print_table
from quiver.cli.support.session import UrlFlag, connected
from quiver.cli.support.text import harmless, shown_time
from quiver.errors import InvalidRequest, InvalidSetting

if TYPE_CHECKING:
    from datetime import datetime

    from quiver.client.consumer.peeked import MessageStatus
    from quiver.model.message import Message


def message(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(help="The topic or queue.", show_default=False)],
    message_id: Annotated[
        str, typer.Argument(metavar="ID", help="Id of the message.", show_default=False)
    ],
    json: Json = False,
    url: UrlFlag = None,
) -> None:
    """Show a message and its state in each subscription."""
    check_id(message_id)
    with connected(context, url) as client:
        status = client.message_status(topic, message_id)
    if json:
        print_json(_json_status(status))
    else:
        _print_status(status, message_id)


def check_id(text: str) -> None:
    """Check the form of a message id; a wrong one is a usage error."""
    from quiver.model.message_id import parse_message_id  # noqa: PLC0415 - it loads numpy

    try:
        parse_message_id(text)
    except InvalidRequest as error:
        raise InvalidSetting(error.message) from None


def _json_status(status: MessageStatus) -> dict[str, Any]:
    from quiver.cli.support.message_text import json_object  # noqa: PLC0415 - not for help

    return {
        "topic": status.topic,
        "partition": status.partition,
        "offset": status.offset,
        "message": None if status.message is None else json_object(status.message),
        "subscriptions": [
            {
                "subscription": one.subscription,
                "state": one.state,
                "deliveries": one.deliveries,
                "consumer": one.consumer,
                "until": None if one.until is None else _shown(one.until),
                "at": None if one.at is None else _shown(one.at),
            }
            for one in status.subscriptions
        ],
    }


def _print_status(status: MessageStatus, message_id: str) -> None:
    from quiver.cli.support.message_text import shown_content, shown_headers  # noqa: PLC0415 - not for help

    found = status.message
    rows = [("place", f"{status.topic}/{status.partition}:{status.offset}")]
    if found is None:
        rows.append(("payload", "removed by retention"))
    else:
        rows += [
            ("stored", shown_time(found.timestamp_us)),
            ("key", "-" if found.key is None else shown_content(found.key)),
            ("headers", shown_headers(found) or "-"),
            ("priority", str(found.priority)),
            ("deliver_at", shown_time(found.deliver_at_us)),
            ("expires_at", shown_time(found.expires_at_us)),
            ("payload", shown_content(found.payload)),
            *_dead_letter_rows(found),
        ]
    print_table(("MESSAGE", message_id), rows)
    if not status.subscriptions:
        tell(f"{status.topic} has no subscriptions")
        return
    print_line("")
    print_table(
        ("SUBSCRIPTION", "STATE", ">DELIVERIES", "CONSUMER", "UNTIL", "AT"),
        [
            (
                one.subscription,
                one.state,
                one.deliveries,
                one.consumer or "-",
                _shown(one.until),
                _shown(one.at),
            )
            for one in status.subscriptions
        ],
    )


def _dead_letter_rows(message: Message) -> list[tuple[str, str]]:
    from quiver.cli.support.message_text import shown_origin  # noqa: PLC0415 - not for help
    from quiver.model.message import time_us_of  # noqa: PLC0415 - not for help

    letter = message.dead_letter
    if letter is None:
        return []
    times = {
        "origin_time": letter.origin_time,
        "first_delivery": letter.first_delivery,
        "last_delivery": letter.last_delivery,
    }
    return [
        ("last_error", harmless(letter.last_error or "-")),
        ("origin", shown_origin(letter)),
        ("origin_subscription", harmless(letter.origin_subscription or "-")),
        ("deliveries", str(letter.deliveries)),
        *(
            (name, shown_time(None if time is None else time_us_of(time)))
            for name, time in times.items()
        ),
    ]


def _shown(time: datetime | None) -> str:
    from quiver.model.message import time_us_of  # noqa: PLC0415 - not for help

    return shown_time(None if time is None else time_us_of(time))
