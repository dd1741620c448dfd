"""The work of ``quiver consume``.

A message is acknowledged only after it is printed, so an interruption loses none and may print some
twice. At the end the consumer leaves: its unacknowledged messages go back to the queue at once, and
this does not count as a delivery.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

import msgspec
import typer

from quiver.cli.support.message_text import json_line, text_line
from quiver.cli.support.session import connected
from quiver.errors import QuiverError

if TYPE_CHECKING:
    from quiver import Client
    from quiver.client.consumer.received import ReceivedMessage

PORTION = 100
"""Messages received, printed and settled at a time."""
_WAIT_S = 20.0


class Settlement(Enum):
    """What happens to a message after it is printed."""

    ACK = "ack"
    NACK = "nack"
    REJECT = "reject"
    NONE = "none"


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What to receive, and what to do with it."""

    name: str
    limit: int | None
    wait_s: float | None
    """``None``: for ever; with ``Settlement.NONE``: 0."""
    visibility_s: float | None
    settlement: Settlement
    error: str | None
    delay_s: float | None
    json: bool


def run(context: typer.Context, url: str | None, wanted: Wanted) -> None:
    """Receive, print and settle messages until the limit or an interruption."""
    with connected(context, url) as client:
        visibility_s = client.describe_subscription(wanted.name).settings.visibility_s
        consumer = _Consumer(client, wanted, wanted.visibility_s or visibility_s)
        try:
            while messages := consumer.receive():
                consumer.show(messages)
        finally:
            with contextlib.suppress(QuiverError):
                client.leave(wanted.name)


class _Consumer:
    def __init__(self, client: Client, wanted: Wanted, visibility_s: float) -> None:
        self._client = client
        self._wanted = wanted
        self._hold_s = visibility_s / 2 if wanted.settlement is Settlement.NONE else math.inf
        """How long messages are held: less than their leases last."""
        self._hold_until = math.inf
        self._received = 0

    def receive(self) -> list[ReceivedMessage]:
        """The next messages; empty at the end."""
        wanted = self._wanted
        count = PORTION if wanted.limit is None else min(PORTION, wanted.limit - self._received)
        if not count or time.monotonic() >= self._hold_until:
            return []
        until = self._until()
        while True:
            left_s = max(0.0, until - time.monotonic())
            messages = self._client.receive(
                wanted.name, count, wait=min(left_s, _WAIT_S), visibility=wanted.visibility_s
            )
            if messages or not left_s:
                break
        self._received += len(messages)
        self._hold_until = min(self._hold_until, time.monotonic() + self._hold_s)
        return messages

    def _until(self) -> float:
        """When to stop waiting for more."""
        wait_s = self._wanted.wait_s
        if wait_s is None:
            wait_s = 0.0 if self._wanted.settlement is Settlement.NONE else math.inf
        return min(time.monotonic() + wait_s, self._hold_until)

    def show(self, messages: Sequence[ReceivedMessage]) -> None:
        """Print the messages, then settle them."""
        for message in messages:
            sys.stdout.write(self._line(message) + "\n")
        sys.stdout.flush()
        self._settle(messages)

    def _line(self, message: ReceivedMessage) -> str:
        if self._wanted.json:
            return json_line(message, topic=message.topic, deliveries=message.deliveries)
        return text_line(message, names_topic=True)

    def _settle(self, messages: Sequence[ReceivedMessage]) -> None:
        wanted = self._wanted
        if wanted.settlement is Settlement.ACK:
            self._client.ack(wanted.name, messages)
        elif wanted.settlement is Settlement.NACK:
            self._client.nack(wanted.name, messages, delay=wanted.delay_s, error=wanted.error)
        elif wanted.settlement is Settlement.REJECT:
            self._client.reject(wanted.name, messages, error=wanted.error)
