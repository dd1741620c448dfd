"""Waits with a bound, and what a queue looks like from outside."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable

import quiver
from quiver.errors import TopicNotFound

SECONDS_MAX = 60.0


def eventually(holds: Callable[[], object], what: str, within_s: float = SECONDS_MAX) -> float:
    """Wait until it holds; how long that took."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < within_s, f"not within {within_s:g} s: {what}"
        time.sleep(0.005)
    return time.monotonic() - began


def pending(q: quiver.Client, queue: str) -> int:
    """How many messages are not finished."""
    info = q.describe_subscription(queue)
    counts = info.ready, info.delayed, info.leased, info.unseen
    return sum(count or 0 for count in counts)


def wait_until_empty(q: quiver.Client, queue: str) -> None:
    eventually(lambda: pending(q, queue) == 0, f"{queue} is empty")


def numbered(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def publish(q: quiver.Client, queue: str, payloads: Iterable[str]) -> None:
    q.publish_many(queue, [payload.encode() for payload in payloads])


def dead_letters(q: quiver.Client, queue: str) -> list[tuple[str, str]]:
    """The text and the error of each, once all that there are to be are stored."""
    expected = q.describe_subscription(queue).dead
    found: list[tuple[str, str]] = []

    def are_stored() -> bool:
        with contextlib.suppress(TopicNotFound):
            rows = [row for batch in q.read(f"{queue}.dlq") for row in batch.to_pylist()]
            found[:] = [(row["payload"].decode(), row["last_error"]) for row in rows]
        return len(found) == expected

    if expected:
        eventually(are_stored, f"{expected} dead letters are stored")
    return found
