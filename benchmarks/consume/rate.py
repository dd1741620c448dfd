"""How fast a queue is consumed: until every ack is stored, or for some seconds."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from benchmarks.consume.queue import Queue
from benchmarks.harness.deadline import deadline

_SECONDS_MAX = 60.0
_POLL_S = 0.002


class Consumed(msgspec.Struct, frozen=True):
    messages: int
    seconds: float
    """From before the client connects until it is closed and all of its acks are stored."""
    cpu_seconds: float
    """What the server spent on it, if it was asked."""

    @property
    def rate(self) -> float:
        return self.messages / self.seconds

    @property
    def cpu_us(self) -> float:
        """For each message."""
        return 1e6 * self.cpu_seconds / self.messages


def consumed(
    queue: Queue,
    messages: int,
    seconds_max: float,
    cpu_seconds: Callable[[], float] = lambda: 0.0,
) -> Consumed:
    """Fill an empty queue, then consume all of it, or as much as goes in the time."""
    queue.create()
    queue.fill(messages)
    taken = 0

    def handle(_: bytes) -> bool:
        nonlocal taken
        taken += 1
        return taken == messages or time.perf_counter() > until

    with deadline(_SECONDS_MAX):
        before, began = cpu_seconds(), time.perf_counter()
        until = began + seconds_max
        queue.consume(handle)
        while queue.unsettled() != messages - taken:
            time.sleep(_POLL_S)
        seconds, after = time.perf_counter() - began, cpu_seconds()
    return Consumed(taken, seconds, after - before)
