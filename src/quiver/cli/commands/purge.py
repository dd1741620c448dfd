"""``quiver purge``: discard the pending messages of a queue or subscription."""

from __future__ import annotations

from typing import Annotated

import typer

from quiver.cli.support.exit_codes import tell
from quiver.cli.support.output import Json, Yes, print_json
from quiver.cli.support.session import UrlFlag, connected
from quiver.cli.support.subscription_text import pending
from quiver.cli.support.text import plural


def purge(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The queue or subscription.", show_default=False)],
    filter: Annotated[
        str | None,
        typer.Option(
            "--filter",
            metavar="FILTER",
            help="Discard only messages that match, as in 'priority < 5'.",
        ),
    ] = None,
    yes: Yes = False,
    json: Json = False,
    url: UrlFlag = None,
) -> None:
    """Discard the pending messages of a queue or subscription, leased ones too."""
    if filter is not None:
        from quiver.model.filter import parse_filter  # noqa: PLC0415 - it loads pyarrow

        parse_filter(filter)
    with connected(context, url) as client:
        if not yes:
            left = plural(pending(client.describe_subscription(name)), "pending message")
            which = left if filter is None else f"the matching ones of {left}"
            typer.confirm(f"Purge {which} of {name}? This cannot be undone", abort=True, err=True)
        count = client.purge(name, filter=filter)
    if json:
        print_json({"messages": count})
        return
    tell(f"purged {plural(count, 'message')} of {name}")
