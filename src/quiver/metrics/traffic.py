"""What passes through a broker, counted by topic and by subscription, batch by batch.

Names are bounded: the first ``names_max`` topics and subscriptions have counts of their own, all
others share one. A name keeps its place for as long as it exists, so that no counter goes back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from quiver.metrics.distribution import (
    FSYNC_BOUNDS,
    PUBLISH_BOUNDS,
    QUEUE_BOUNDS,
    Distribution,
    merged,
)

OTHERS = "__others"
"""What stands for all names that have no counts of their own; nothing else can be called so."""
NAMES_MAX = 1000


class TopicCounts:
    __slots__ = ("batches", "bytes", "latency", "messages")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.batches = 0
        self.latency = Distribution(PUBLISH_BOUNDS)

    def stored(self, messages: int, size: int, batches: int) -> None:
        self.messages += messages
        self.bytes += size
        self.batches += batches


class SubscriptionCounts:
    __slots__ = (
        "acked",
        "dead_lettered",
        "delivered",
        "delivered_bytes",
        "nacked",
        "rebalances",
        "redelivered",
        "time_in_queue",
    )

    def __init__(self) -> None:
        self.delivered = 0
        self.delivered_bytes = 0
        self.redelivered = 0
        self.acked = 0
        self.nacked = 0
        self.dead_lettered = 0
        self.rebalances = 0
        self.time_in_queue = Distribution(QUEUE_BOUNDS)


C = TypeVar("C")


class ByName(Generic[C]):
    def __init__(self, make: Callable[[], C], names_max: int) -> None:
        self._make = make
        self._names_max = names_max
        self.counts: dict[str, C] = {}
        self.others = make()

    def of(self, name: str) -> C:
        """The counts of a name, or those of all that have none."""
        found = self.counts.get(name)
        if found is None:
            if len(self.counts) >= self._names_max:
                return self.others
            found = self.counts[name] = self._make()
        return found

    def forget(self, name: str) -> None:
        """What had this name is no more."""
        self.counts.pop(name, None)


class Traffic:
    def __init__(self, names_max: int = NAMES_MAX) -> None:
        self.topics = ByName(TopicCounts, names_max)
        self.subscriptions = ByName(SubscriptionCounts, names_max)
        self.fsync = Distribution(FSYNC_BOUNDS)

    @property
    def publish_latency(self) -> Distribution:
        """Of publishes to all topics that there are."""
        topics = (*self.topics.counts.values(), self.topics.others)
        return merged(PUBLISH_BOUNDS, [topic.latency for topic in topics])
