"""``quiver redrive``: send dead letters back to their queue or subscription."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from quiver.cli.support.exit_codes import tell
from quiver.cli.support.output import Json, print_json, progress
from quiver.cli.support.session import UrlFlag, connected
from quiver.cli.support.text import plural


def redrive(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The queue or subscription.", show_default=False)],
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="TOPIC", help="Send them to this topic instead."),
    ] = None,
    filter: Annotated[
        str | None,
        typer.Option(
            "--filter",
            metavar="FILTER",
            help="Send only messages that match, as in \"last_error like 'card%'\".",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only count the messages that would be sent.")
    ] = False,
    rate: Annotated[
        float | None, typer.Option("--rate", min=0.001, help="Most messages to send per second.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="Most messages to send.")
    ] = None,
    json: Json = False,
    url: UrlFlag = None,
) -> None:
    """Send dead letters back to their queue or subscription."""
    if filter is not None:
        from quiver.model.filter import parse_filter  # noqa: PLC0415 - it loads pyarrow

        parse_filter(filter)
    with connected(context, url) as client:

        def count() -> int:
            found = client.redrive(name, to=to, filter=filter, dry_run=True)
            return found if limit is None else min(found, limit)

        if dry_run:
            _print_count("would send", count(), to, json=json)
            return
        total = count() if sys.stderr.isatty() else None
        with progress("redriving", total) as advance:
            sent = _Sent(advance)
            try:
                client.redrive(
                    name, to=to, filter=filter, rate=rate, max_messages=limit, on_progress=sent
                )
            except BaseException:
                if sent.count:
                    tell(f"sent at least {plural(sent.count, 'dead letter')} before the error")
                raise
    _print_count("sent", sent.count, to, json=json)


class _Sent:
    """Counts what was sent so far."""

    def __init__(self, advance: Callable[[int], None]) -> None:
        self._advance = advance
        self.count = 0

    def __call__(self, count: int) -> None:
        self._advance(count - self.count)
        self.count = count


def _print_count(verb: str, count: int, to: str | None, *, json: bool) -> None:
    if json:
        print_json({"messages": count})
        return
    tell(f"{verb} {plural(count, 'dead letter')} {'back' if to is None else f'to {to}'}")
