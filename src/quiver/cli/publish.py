"""``quiver publish``: messages from the command line, a file or standard input into a topic.

Messages are sent while earlier ones are still being stored, and the command ends well only when
every one of them is. With ``--producer-name`` a rerun after an interruption stores nothing twice.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quiver.cli.exits import tell
from quiver.cli.message_lines import Line, key_of, lines_of, opened
from quiver.cli.output import print_json, progress
from quiver.cli.session import UrlFlag, connected
from quiver.cli.text import parse_pairs
from quiver.model.topic import Acks
from quiver.model.units import seconds

if TYPE_CHECKING:
    from quiver.client import Delivery

UNCONFIRMED_MAX = 10_000
"""How many messages may be on their way before the first of them is waited for."""


def publish(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(help="The topic.", show_default=False)],
    payloads: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PAYLOAD]...",
            help="One message each; - reads lines from standard input.",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option("--file", metavar="PATH", help="One message per line; - is standard input."),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="The key of every message.")] = None,
    key_field: Annotated[
        str | None,
        typer.Option("--key-field", metavar="NAME", help="Take the key from this JSON field."),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header; may be repeated."),
    ] = None,
    priority: Annotated[
        int | None, typer.Option("--priority", min=0, max=9, help="9 is delivered first.")
    ] = None,
    delay: Annotated[
        str | None, typer.Option("--delay", metavar="TIME", help="Deliver later, as in 1h.")
    ] = None,
    acks: Annotated[
        Acks | None, typer.Option("--acks", help="Whom to wait for, instead of the topic's choice.")
    ] = None,
    producer_name: Annotated[
        str | None,
        typer.Option(
            "--producer-name",
            metavar="NAME",
            help="Number the lines under this name: run again, it stores nothing twice.",
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print where each message was stored, one per line.")
    ] = False,
    url: UrlFlag = None,
) -> None:
    """Publish messages: as arguments, from a file, or from standard input, one per line."""
    if key is not None and key_field is not None:
        raise typer.BadParameter("--key and --key-field exclude each other", ctx=context)
    source = _source(context, payloads or [], file)
    options = {
        "headers": parse_pairs(header or [], "header") or None,
        "priority": priority,
        "delay": None if delay is None else seconds(delay),
    }
    publishing = _Publishing(json=json)
    with connected(context, url) as client, progress("publishing", None) as advance:
        with client.producer(topic, name=producer_name, acks=acks) as producer:
            for line in source:
                own_key = key if key_field is None else key_of(line, key_field)
                sequence = None if producer_name is None else line.number
                publishing.sent(
                    producer.send(line.payload, key=own_key, sequence=sequence, **options)
                )
                advance(1)
            publishing.finish()
    if not json:
        publishing.print_summary(topic)


def _source(context: typer.Context, payloads: list[str], file: str | None) -> Iterator[Line]:
    if payloads == ["-"]:
        payloads, file = [], "-"
    if payloads and file is not None:
        raise typer.BadParameter("give payloads or --file, not both", ctx=context)
    if payloads:
        return (Line(number, text.encode()) for number, text in enumerate(payloads, 1))
    if file is None and sys.stdin.isatty():
        raise typer.BadParameter(
            "no messages: give a PAYLOAD or --file, or pipe lines in", ctx=context
        )
    return _lines(file or "-")


def _lines(path: str) -> Iterator[Line]:
    with opened(path) as file:
        yield from lines_of(file)


class _Publishing:
    """Counts what was stored, and keeps the number of unconfirmed messages within bounds."""

    def __init__(self, *, json: bool) -> None:
        self._json = json
        self._unconfirmed: deque[Delivery] = deque()
        self._started_s = time.monotonic()
        self.stored = 0
        self.duplicates = 0

    def sent(self, delivery: Delivery) -> None:
        self._unconfirmed.append(delivery)
        while len(self._unconfirmed) > UNCONFIRMED_MAX:
            self._confirm(self._unconfirmed.popleft())

    def finish(self) -> None:
        while self._unconfirmed:
            self._confirm(self._unconfirmed.popleft())

    def _confirm(self, delivery: Delivery) -> None:
        position: Any = delivery.result()
        if position.duplicate:
            self.duplicates += 1
        else:
            self.stored += 1
        if self._json:
            print_json(position, indent=False)

    def print_summary(self, topic: str) -> None:
        taken_s = time.monotonic() - self._started_s
        total = self.stored + self.duplicates
        text = f"published {self.stored:,} message{'s' if self.stored != 1 else ''} to {topic}"
        if self.duplicates:
            text += f"; {self.duplicates:,} had been stored before"
        if total > 1:
            text += f" in {taken_s:.2f} s ({total / max(taken_s, 1e-9):,.0f} per second)"
        tell(text)
