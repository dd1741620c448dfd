"""A consumer in a process of its own, to be killed: it says what it got and what became of it.

Each line is a word and places (``partition:offset``); ``got`` begins with when it was asked for.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import quiver
from quiver.client.consumer.received import ReceivedMessage
from quiver.errors import QuiverError
from tests.killable import report

POISON = b"poison"


def consume(url: str, queue: str, visibility_s: float) -> None:
    """Receive, acknowledge what is good and give back what is not, until killed."""
    with quiver.Client(url, timeout=60) as q:
        while True:
            asked = time.monotonic_ns()
            try:
                messages = q.receive(queue, 100, wait=1, visibility=visibility_s)
            except QuiverError:
                continue
            if not messages:
                continue
            report("got", asked, places(messages))
            bad = [m for m in messages if m.payload.startswith(POISON)]
            good = [m for m in messages if not m.payload.startswith(POISON)]
            report("try", places(good))
            try:
                q.ack(queue, good)
                report("acked", places(good))
                q.nack(queue, bad, error="poison")
            except QuiverError as error:
                report("failed", error.code)


def places(messages: Sequence[ReceivedMessage]) -> str:
    return " ".join(f"{m.partition}:{m.offset}" for m in messages)


def hold(url: str, queue: str, count: int) -> None:
    """Take messages in a consumer's session and keep them, until killed."""
    with quiver.Client(url, timeout=60) as q, q.consumer(queue) as messages:
        held = [next(iter(messages)) for _ in range(count)]
        report("holds", places(held))
        time.sleep(600)
