"""``quiver publish``: publish messages from arguments, a file or standard input.

Messages are pipelined. The command succeeds only when all of them are stored. With
``--producer-name``, a rerun after an interruption stores nothing twice.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from quiver.cli.support.exit_codes import tell
from quiver.cli.support.message_lines import Line, key_of, lines_of, opened
from quiver.cli.support.output import print_json, progress
from quiver.cli.support.session import UrlFlag, connected
from quiver.cli.support.text import parse_moment, parse_pairs, plural, shown_time
from quiver.errors import InvalidSetting
from quiver.model.topic import Acks
from quiver.model.units import seconds

if TYPE_CHECKING:
    from quiver import Delivery, Published
    from quiver.client.producer.outgoing import MessageOptions

UNCONFIRMED_MAX = 10_000
"""Most messages sent and not yet confirmed."""


Topic = Annotated[str, typer.Argument(help="The topic.", show_default=False)]
Payloads = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PAYLOAD]...",
        help="Payload of a message. - reads lines from standard input.",
        show_default=False,
    ),
]
File = Annotated[
    str | None,
    typer.Option(
        "--file",
        metavar="PATH",
        help="Publish each line of this file. - is standard input.",
    ),
]
Key = Annotated[str | None, typer.Option("--key", help="Key of every message.")]
KeyField = Annotated[
    str | None,
    typer.Option(
        "--key-field",
        metavar="NAME",
        help="Take each key from this field of the JSON payload.",
    ),
]
Headers = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header. May be repeated."),
]
Priority = Annotated[
    int | None, typer.Option("--priority", min=0, max=9, help="Priority. 9 is delivered first.")
]
Delay = Annotated[
    str | None,
    typer.Option("--delay", metavar="TIME", help="Deliver after this time, as in 1h."),
]
DeliverAt = Annotated[
    str | None,
    typer.Option(
        "--deliver-at", metavar="TIME", help="Deliver at this time, as in 2026-01-01T09:00."
    ),
]
TopicAcks = Annotated[
    Acks | None,
    typer.Option(
        "--acks",
        help="Override the topic's acks: which replicas must store a message.",
    ),
]
ProducerName = Annotated[
    str | None,
    typer.Option(
        "--producer-name",
        metavar="NAME",
        help="Number the lines under this name, so that a second run stores nothing twice.",
    ),
]
PrintJson = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print the position of each stored message, one JSON object per line.",
    ),
]


def publish(
    context: typer.Context,
    topic: Topic,
    payloads: Payloads = None,
    file: File = None,
    key: Key = None,
    key_field: KeyField = None,
    header: Headers = None,
    priority: Priority = None,
    delay: Delay = None,
    deliver_at: DeliverAt = None,
    acks: TopicAcks = None,
    producer_name: ProducerName = None,
    json: PrintJson = False,
    url: UrlFlag = None,
) -> None:
    """Publish messages from arguments, a file or standard input."""
    if key is not None and key_field is not None:
        raise typer.BadParameter("give --key or --key-field, not both", ctx=context)
    source = _source(context, payloads or [], file)
    options = _options(header or [], priority, delay, deliver_at)
    confirmations = _Confirmations(topic, json=json)
    with (
        connected(context, url) as client,
        progress("publishing", None) as advance,
        confirmations,
        client.producer(topic, name=producer_name, acks=acks) as producer,
    ):
        for line in source:
            own_key = key if key_field is None else key_of(line, key_field)
            if producer_name is not None:
                options["sequence"] = line.number
            confirmations.sent(producer.send(line.payload, key=own_key, **options))
            advance(1)


def _options(
    header: list[str], priority: int | None, delay: str | None, deliver_at: str | None
) -> MessageOptions:
    """The options that were given."""
    options: MessageOptions = {}
    if header:
        options["headers"] = parse_pairs(header, "header")
    if priority is not None:
        options["priority"] = priority
    if delay is not None:
        seconds(delay)  # a mistake is told before connecting
        options["delay"] = delay
    if deliver_at is not None:
        moment = parse_moment(deliver_at)
        if moment is None:
            raise InvalidSetting(
                f"--deliver-at: {deliver_at!r} is not a time; write it as in 2026-01-01T09:00"
            )
        options["deliver_at"] = moment
    return options


def _source(context: typer.Context, payloads: list[str], file: str | None) -> Iterator[Line]:
    if payloads == ["-"]:
        payloads, file = [], "-"
    if payloads and file is not None:
        raise typer.BadParameter("give payloads or --file, not both", ctx=context)
    if payloads:
        return (Line(number, text.encode()) for number, text in enumerate(payloads, 1))
    if file is None and sys.stdin.isatty():
        raise typer.BadParameter(
            "there is nothing to publish: give a PAYLOAD or --file, or pipe lines in", ctx=context
        )
    return _lines(file or "-")


def _lines(path: str) -> Iterator[Line]:
    with opened(path) as file:
        yield from lines_of(file)


class _Confirmations:
    """Bounds the number of unconfirmed messages, and prints a summary at the end.

    It outlives the producer: when its block ends, every message is confirmed or failed, so the
    counts are final even after an error.
    """

    def __init__(self, topic: str, *, json: bool) -> None:
        self._topic = topic
        self._json = json
        self._unconfirmed: deque[Delivery] = deque()
        self._started_s = time.monotonic()
        self._stored = self._duplicates = 0

    def sent(self, delivery: Delivery) -> None:
        self._unconfirmed.append(delivery)
        while len(self._unconfirmed) > UNCONFIRMED_MAX or (
            self._unconfirmed and self._unconfirmed[0].done()
        ):
            self._confirm(self._unconfirmed.popleft().result())

    def _confirm(self, published: Published) -> None:
        if published.duplicate:
            self._duplicates += 1
        else:
            self._stored += 1
        if self._json:
            print_json(_position(published), indent=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        failed = kind is not None
        while self._unconfirmed:
            delivery = self._unconfirmed.popleft()
            if not failed or (delivery.done() and delivery.exception() is None):
                self._confirm(delivery.result())
        if not self._json and (self._stored or not failed):
            tell(self._summary())

    def _summary(self) -> str:
        total = self._stored + self._duplicates
        text = f"published {plural(self._stored, 'message')}"
        text += f" to {self._topic}"
        if self._duplicates:
            text += f"; {self._duplicates:,} were duplicates"
        if total > 1:
            taken_s = max(time.monotonic() - self._started_s, 1e-9)
            text += f" in {taken_s:.2f} s ({total / taken_s:,.0f} per second)"
        return text


def _position(published: Published) -> dict[str, Any]:
    return {
        "topic": published.topic,
        "partition": published.partition,
        "offset": published.offset,
        "id": published.id,
        "timestamp": None if published.timestamp_us is None else shown_time(published.timestamp_us),
        "duplicate": published.duplicate,
    }
