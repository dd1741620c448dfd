"""Collects what the console and ``quiver top`` show, through a client: depths, rates, ages.

Each round asks the node about a bounded number of topics and subscriptions. Where there are more, they
take turns and keep their last values meanwhile, and their names are listed more rarely. Rates are
differences between two rounds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from itertools import islice

import msgspec

from quiver.client import AsyncClient
from quiver.console.latency import PublishLatency
from quiver.console.snapshot import (
    ConsoleSnapshot,
    NodeMetricsRow,
    SubscriptionMetricsRow,
    TopicMetricsRow,
    Totals,
)
from quiver.errors import AccessRefused, QuiverError
from quiver.model.clock import Clock
from quiver.protocol import SubscriptionInfo, TopicInfo

ROWS_MAX = 500
"""How many topics, and how many subscriptions, are watched."""
LOOKS_MAX = 50
"""How many of each are looked at every time."""
PEEKS_MAX = 10
_AT_A_TIME = 10
_MANY = 2 * ROWS_MAX
_TIME_SHARE_MAX = 0.005
_PAUSE_S_MAX = 60.0
"""Listing many names takes a small share of the time, and happens at least this often."""


class Turns:
    """Takes some names after the other, round and round."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._last = ""

    def next(self, names: Iterable[str]) -> list[str]:
        ordered = sorted(names)
        if len(ordered) <= self._at_once:
            return ordered
        after = [name for name in ordered if name > self._last]
        chosen = list(islice(_then(after, ordered), self._at_once))
        self._last = chosen[-1]
        return chosen


def _then(first: list[str], rest: list[str]) -> Iterator[str]:
    yield from first
    yield from rest


class _Look(msgspec.Struct):
    """What was seen of a topic or a subscription, and when."""

    at: float
    count: int
    size: int = 0


class MetricsCollector:
    """The metrics of one viewer: a client sees what its principal may see."""

    def __init__(self, client: AsyncClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._topics: dict[str, TopicMetricsRow] = {}
        self._subscriptions: dict[str, SubscriptionMetricsRow] = {}
        self._ends: dict[str, _Look] = {}
        self._depths: dict[str, _Look] = {}
        self._topic_turns = Turns(LOOKS_MAX)
        self._subscription_turns = Turns(LOOKS_MAX)
        self._peek_turns = Turns(PEEKS_MAX)
        self._may_not_peek: set[str] = set()
        self._latency = PublishLatency()
        self._counts = 0, 0
        self._list_at = 0.0

    async def take(self) -> ConsoleSnapshot:
        node = await self._node()
        topics, subscriptions = await self._names()
        await self._each(self._topic_turns.next(self._topics), self._look_at_topic)
        await self._each(
            self._subscription_turns.next(self._subscriptions), self._look_at_subscription
        )
        await self._each(self._peek_turns.next(self._waiting()), self._look_at_oldest)
        self._mark_dead_letters()
        return ConsoleSnapshot(
            time_ms=self._clock.time_us() // 1000,
            node=node,
            totals=self._totals(),
            topics=list(self._topics.values()),
            subscriptions=list(self._subscriptions.values()),
            more_topics=topics - len(self._topics),
            more_subscriptions=subscriptions - len(self._subscriptions),
        )

    async def _node(self) -> NodeMetricsRow:
        began = self._clock.monotonic()
        node = await self._client.describe_node()
        answer_ms = (self._clock.monotonic() - began) * 1000
        p50_ms, p99_ms = self._latency.between(node.counters, 0.5, 0.99)
        return NodeMetricsRow(
            name=node.node,
            software=node.software,
            uptime_s=node.uptime_s,
            topics=node.topics,
            partitions=node.partitions,
            connections=node.connections,
            answer_ms=answer_ms,
            publish_p50_ms=p50_ms,
            publish_p99_ms=p99_ms,
        )

    async def _names(self) -> tuple[int, int]:
        """Learn what there is; how many topics and subscriptions that is."""
        began = self._clock.monotonic()
        if sum(self._counts) > _MANY and began < self._list_at:
            return self._counts
        topics = await self._client.list_topics()
        self._topics = {
            one.name: self._topics.get(one.name)
            or TopicMetricsRow(name=one.name, partitions=len(one.partitions))
            for one in topics[:ROWS_MAX]
        }
        subscriptions = await self._client.list_subscriptions()
        self._subscriptions = {
            one.name: self._subscriptions.get(one.name) or _subscription(one)
            for one in subscriptions[:ROWS_MAX]
        }
        self._ends = {name: look for name, look in self._ends.items() if name in self._topics}
        self._depths = {
            name: look for name, look in self._depths.items() if name in self._subscriptions
        }
        self._may_not_peek &= self._subscriptions.keys()
        self._counts, now = (len(topics), len(subscriptions)), self._clock.monotonic()
        self._list_at = now + min(_PAUSE_S_MAX, (now - began) / _TIME_SHARE_MAX)
        return self._counts

    async def _each(self, names: list[str], look: Callable[[str], Awaitable[None]]) -> None:
        """Look at each, some at a time; what has gone meanwhile is left as it was."""
        for first in range(0, len(names), _AT_A_TIME):
            found = await asyncio.gather(
                *map(look, names[first : first + _AT_A_TIME]), return_exceptions=True
            )
            for error in found:
                if error is not None and not isinstance(error, QuiverError):
                    raise error

    # ------------------------------------------------------------------ topics

    async def _look_at_topic(self, name: str) -> None:
        info = await self._client.describe_topic(name)
        now, end, size = self._clock.monotonic(), _end(info), _size(info)
        before = self._ends.get(name)
        self._ends[name] = _Look(now, end, size)
        begin = sum(one.start_offset or 0 for one in info.partitions)
        row = TopicMetricsRow(
            name=name, partitions=len(info.partitions), messages=end - begin, bytes=size
        )
        if before is not None:
            row.rate = _rate(end - before.count, now - before.at)
            row.byte_rate = _rate(size - before.size, now - before.at)
        self._topics[name] = row

    # ------------------------------------------------------------------ subscriptions

    async def _look_at_subscription(self, name: str) -> None:
        info = await self._client.describe_subscription(name)
        now, row = self._clock.monotonic(), _subscription(info)
        before, known = self._depths.get(name), self._subscriptions.get(name)
        self._depths[name] = _Look(now, row.pending)
        if before is not None:
            grown = (row.pending - before.count) / max(now - before.at, 1e-3)
            row.rate = max(0.0, self._arriving(row.topics) - grown)
        row.oldest_s = 0.0 if not row.pending else known.oldest_s if known else None
        self._subscriptions[name] = row

    def _arriving(self, patterns: list[str]) -> float:
        """How many messages a second are stored in these topics."""
        return sum(
            topic.rate
            for topic in self._topics.values()
            if any(fnmatchcase(topic.name, pattern) for pattern in patterns)
        )

    def _waiting(self) -> list[str]:
        return [
            one.name
            for one in self._subscriptions.values()
            if one.pending and one.name not in self._may_not_peek
        ]

    async def _look_at_oldest(self, name: str) -> None:
        try:
            found = await self._client.peek(name, 1)
        except AccessRefused:
            self._may_not_peek.add(name)
            return
        if found:
            oldest_us = min(message.timestamp_us for message in found)
            age_us = self._clock.time_us() - oldest_us
            self._subscriptions[name].oldest_s = max(0, age_us) / 1e6

    def _mark_dead_letters(self) -> None:
        """Tell apart what holds the dead letters of others: they are counted there as ``dead``."""
        holders = {one.dead_letters for one in self._subscriptions.values()}
        for topic in self._topics.values():
            topic.holds_dead_letters = topic.name in holders
        for subscription in self._subscriptions.values():
            subscription.holds_dead_letters = subscription.name in holders

    def _totals(self) -> Totals:
        topics = [one for one in self._topics.values() if not one.holds_dead_letters]
        subscriptions = [one for one in self._subscriptions.values() if not one.holds_dead_letters]
        return Totals(
            published_rate=sum(one.rate for one in topics),
            byte_rate=sum(one.byte_rate for one in topics),
            finished_rate=sum(one.rate for one in subscriptions),
            ready=sum(one.ready for one in subscriptions),
            delayed=sum(one.delayed for one in subscriptions),
            leased=sum(one.leased for one in subscriptions),
            dead=sum(one.dead for one in subscriptions),
            pending=sum(one.pending for one in subscriptions),
            oldest_s=max((one.oldest_s or 0.0 for one in subscriptions), default=0.0),
        )


def _end(info: TopicInfo) -> int:
    return sum(one.next_offset or 0 for one in info.partitions)


def _size(info: TopicInfo) -> int:
    return sum(one.bytes or 0 for one in info.partitions)


def _rate(added: int, seconds: float) -> float:
    """Retention and deletion take things away, which is no rate."""
    return max(0, added) / max(seconds, 1e-3)


def _subscription(info: SubscriptionInfo) -> SubscriptionMetricsRow:
    ready = (info.ready or 0) + (info.unseen or 0)
    delayed, leased = info.delayed or 0, info.leased or 0
    return SubscriptionMetricsRow(
        name=info.name,
        is_queue=info.is_queue,
        topics=list(info.settings.topics),
        ready=ready,
        delayed=delayed,
        leased=leased,
        dead=info.dead or 0,
        pending=ready + delayed + leased,
        consumers=len({*(info.consumers or ()), *(info.members or ())}),
        dead_letters=info.settings.dead_letter or f"{info.name}.dlq",
    )
