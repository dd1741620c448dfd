"""When the messages of a steady publisher came, those included that did not come in time."""

from __future__ import annotations

import time

from benchmarks.consume.publisher import place_and_due, publishing
from benchmarks.consume.queue import Stream
from benchmarks.harness.deadline import deadline

_BEHIND_S_MAX = 5.0
"""How long after the last message was due the rest is waited for."""
_STARTING_S_MAX = 60.0


class Arrivals:
    def __init__(self, rate: int, count: int) -> None:
        self._rate = rate
        self._count = count
        self._seen: dict[int, float] = {}
        self._began = 0.0
        self._now = 0.0

    def take(self, payload: bytes) -> bool:
        """Whether this was the last, or the time is over."""
        self._now = time.monotonic()
        head = place_and_due(payload)
        if head is None:
            return False
        place, due = head
        self._seen.setdefault(place, self._now - due)
        self._began = due - place / self._rate
        until = self._began + self._count / self._rate + _BEHIND_S_MAX
        return len(self._seen) == self._count or self._now > until

    def latencies(self) -> list[float]:
        """Seconds from when each was due. What did not come counts as if it came at the end."""
        return [
            self._seen.get(place, self._now - self._began - place / self._rate)
            for place in range(self._count)
        ]

    def behind(self) -> int:
        """How many had not come when the last was due."""
        last_s = (self._count - 1) / self._rate
        return sum(
            place / self._rate + latency > last_s for place, latency in enumerate(self.latencies())
        )


def arrivals(stream: Stream, rate: int, seconds: float) -> Arrivals:
    """Publish from another process and consume in this one, at the same time."""
    count = round(rate * seconds)
    stream.create()
    result = Arrivals(rate, count)
    with deadline(_STARTING_S_MAX + seconds), publishing(stream, rate, count):
        stream.consume(result.take)
    return result
