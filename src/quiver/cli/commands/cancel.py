"""``quiver cancel``: cancel scheduled messages."""

from __future__ import annotations

from typing import Annotated

import typer

from quiver.cli.commands.message import check_id
from quiver.cli.support.exit_codes import tell
from quiver.cli.support.output import Json, print_json
from quiver.cli.support.session import UrlFlag, connected
from quiver.cli.support.text import plural


def cancel(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(help="The topic or queue.", show_default=False)],
    message_ids: Annotated[
        list[str], typer.Argument(metavar="ID...", help="Ids of the messages.", show_default=False)
    ],
    json: Json = False,
    url: UrlFlag = None,
) -> None:
    """Cancel delayed messages that are not due yet."""
    for message_id in message_ids:
        check_id(message_id)
    with connected(context, url) as client:
        count = client.cancel(topic, message_ids)
    if json:
        print_json({"messages": count})
        return
    others = len(set(message_ids)) - count
    tell(
        f"cancelled {plural(count, 'message')}" + (f"; {others:,} not scheduled" if others else "")
    )
