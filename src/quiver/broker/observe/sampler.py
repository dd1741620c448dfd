"""Samples a whole broker: depth and age of its queues.

A sample opens what this node leads and has not opened yet, within a bounded time; what is missing still
is marked as incomplete. What nobody ever used is empty, and is not opened. A sample reads the disk for
the age of messages that nobody has looked at since a restart, and remembers that age. It is kept for a
moment and shared by all who ask. The work is done in slices, so that other work runs in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

from quiver.aio import SingleFlight
from quiver.broker.delivery.progress import progress_of
from quiver.broker.observe.partition_opener import PartitionOpener
from quiver.broker.partition.partition import Partition
from quiver.broker.partition.partitions import Partitions, Place
from quiver.broker.subscription.catalog import SubscriptionCatalog, dead_letter_topic
from quiver.broker.topics.catalog import TopicCatalog
from quiver.errors import QuiverError
from quiver.log.log import LogReader
from quiver.metrics.sample import (
    NodeSample,
    PartitionSample,
    SubscriptionSample,
    TopicSample,
)
from quiver.metrics.traffic import ByName, SubscriptionCounts
from quiver.model.clock import Clock
from quiver.model.ids import Offset

FRESH_S = 1.0
_SLICE = 200
"""After so many partitions others have their turn: that takes about 5 ms."""
_READS_MAX = 100
"""How many messages a sample reads to learn their age; the others are read for the next ones."""


class _Depths:
    """One subscription, added up over its partitions."""

    __slots__ = (
        "dead_letter_pending",
        "delayed",
        "leased",
        "oldest_us",
        "opened_us",
        "partitions",
        "ready",
    )

    def __init__(self) -> None:
        self.ready = self.delayed = self.leased = self.dead_letter_pending = 0
        self.oldest_us: int | None = None
        self.opened_us: int | None = None
        """When the last of its partitions was opened here; ``None`` if none is."""
        self.partitions: list[PartitionSample] = []

    @property
    def pending(self) -> int:
        return self.ready + self.delayed + self.leased

    @property
    def recovered_us(self) -> int | None:
        """The time of the oldest message, if that was there before this node opened the partition."""
        if self.oldest_us is None or self.opened_us is None or self.oldest_us >= self.opened_us:
            return None
        return self.oldest_us

    def saw(self, time_us: int | None) -> None:
        """One of its messages that is not finished is of this time."""
        if time_us is not None and (self.oldest_us is None or time_us < self.oldest_us):
            self.oldest_us = time_us

    def sample(
        self,
        name: str,
        now: int,
        *,
        letters: _Depths | None,
        holds_dead_letters: bool,
        dead_lettered: int,
        unread_lost: int,
        is_complete: bool,
    ) -> SubscriptionSample:
        """``letters``: its dead-letter queue, if that is open here."""
        return SubscriptionSample(
            name=name,
            ready=self.ready,
            delayed=self.delayed,
            leased=self.leased,
            dead_letter_pending=self.dead_letter_pending,
            dead=None if letters is None else letters.pending,
            dead_lettered=dead_lettered,
            recovered_letters_us=None if letters is None else letters.recovered_us,
            oldest_age_s=0.0 if self.oldest_us is None else max(0, now - self.oldest_us) / 1e6,
            unread_lost=unread_lost,
            partitions=self.partitions,
            holds_dead_letters=holds_dead_letters,
            is_complete=is_complete,
        )


class _Totals:
    """One topic, added up over its partitions."""

    __slots__ = ("begun_us", "forgotten", "size", "transactions")

    def __init__(self) -> None:
        self.size = self.forgotten = self.transactions = 0
        self.begun_us: int | None = None
        """When the oldest open transaction began."""

    def add(self, partition: Partition) -> None:
        self.size += partition.log.size
        self.forgotten += partition.window.forgotten
        count, begun_us = partition.open_transactions
        self.transactions += count
        if begun_us is not None and (self.begun_us is None or begun_us < self.begun_us):
            self.begun_us = begun_us


class Sampler:
    def __init__(
        self,
        topics: TopicCatalog,
        subscriptions: SubscriptionCatalog,
        partitions: Partitions,
        opener: PartitionOpener,
        traffic: ByName[SubscriptionCounts],
        unread_lost: Mapping[str, int],
        clock: Clock,
    ) -> None:
        self._topics = topics
        self._subscriptions = subscriptions
        self._partitions = partitions
        self._opener = opener
        self._traffic = traffic
        self._unread_lost = unread_lost
        """By subscription: how many messages retention deleted that it had not finished."""
        self._clock = clock
        self._last: NodeSample | None = None
        self._fresh_until = 0.0
        self._taking: SingleFlight[None, NodeSample] = SingleFlight()
        self._unseen_times: dict[tuple[LogReader, int], tuple[Offset, int]] = {}
        """By partition and subscription: its first message that was not looked at, and its time."""
        self._reads_left = 0

    async def take(self) -> NodeSample:
        """A sample that is not older than a second."""
        if self._last is not None and self._clock.monotonic() < self._fresh_until:
            return self._last
        return await self._taking.run(None, self._take)

    async def _take(self) -> NodeSample:
        self._last = await self._sample()
        self._fresh_until = self._clock.monotonic() + FRESH_S
        return self._last

    async def _sample(self) -> NodeSample:
        missing = await self._opener.open_some()
        partitions = self._partitions.opened()
        totals: dict[int, _Totals] = {}
        depths: dict[int, _Depths] = {}
        self._reads_left, failed = _READS_MAX, 0
        names = {one.number: one.name for one in self._topics.topics()}
        for count, ((topic, index), partition) in enumerate(partitions, 1):
            totals.setdefault(topic, _Totals()).add(partition)
            failed += partition.failure is not None
            for number, offset in self._add_up(names.get(topic, ""), index, partition, depths):
                time = await self._unseen_time(partition.committed, number, offset)
                depths[number].saw(time)
            if count % _SLICE == 0:
                await asyncio.sleep(0)
        await self._add_unused({place for place, _ in partitions}, depths)
        self._forget_closed({partition.committed for _, partition in partitions})
        now, records = self._clock.time_us(), self._subscriptions.all()
        letters = {one.name: dead_letter_topic(one.name, one.settings) for one in records}
        queues = set(letters.values())
        by_name = {one.name: depths[one.number] for one in records if one.number in depths}
        unopened = {
            one.name
            for topic in set(missing.values())
            for one in self._subscriptions.on_topic(topic)
        }
        return NodeSample(
            time_us=now,
            topics=self._topic_samples(totals, {number for number, _ in missing}, now),
            subscriptions=[
                (depths.get(record.number) or _Depths()).sample(
                    record.name,
                    now,
                    letters=by_name.get(letters[record.name]),
                    holds_dead_letters=record.name in queues,
                    dead_lettered=self._traffic.of(record.name).dead_lettered,
                    unread_lost=self._unread_lost.get(record.name, 0),
                    is_complete=unopened.isdisjoint((record.name, letters[record.name])),
                )
                for record in records
            ],
            partitions=len(partitions),
            partitions_failed=failed,
        )

    def _topic_samples(
        self, totals: dict[int, _Totals], incomplete: set[int], now: int
    ) -> list[TopicSample]:
        replication = self._partitions.placement.replication
        lags = {} if replication is None else replication.lags()
        found = [
            (record, totals.get(record.number) or _Totals()) for record in self._topics.topics()
        ]
        return [
            TopicSample(
                name=record.name,
                size=one.size,
                dedup_forgotten=one.forgotten,
                open_transactions=one.transactions,
                transaction_age_s=0.0 if one.begun_us is None else max(0, now - one.begun_us) / 1e6,
                replication_lag=lags.get(record.name),
                is_complete=record.number not in incomplete,
            )
            for record, one in found
        ]

    def _add_up(
        self, topic: str, index: int, partition: Partition, depths: dict[int, _Depths]
    ) -> Iterator[tuple[int, Offset]]:
        """Add one partition; yields each subscription whose oldest message was not looked at."""
        if partition.state is None:
            return
        for number, machine in list(partition.state.machines.items()):
            one = depths.setdefault(number, _Depths())
            progress = progress_of(machine.view, partition.committed)
            depth = progress.depth
            one.partitions.append(
                PartitionSample(
                    topic=topic,
                    partition=index,
                    committed=progress.committed,
                    lag=progress.lag,
                )
            )
            one.ready += depth.ready + progress.unseen
            one.delayed += depth.delayed
            one.leased += depth.leased
            one.dead_letter_pending += depth.dead_letter_pending
            one.opened_us = max(one.opened_us or 0, partition.opened_us)
            oldest = machine.view.oldest_time
            one.saw(oldest)
            if oldest is None and progress.unseen:
                yield number, progress.first_unseen

    async def _add_unused(self, opened: set[Place], depths: dict[int, _Depths]) -> None:
        """Add the partitions that nobody ever used, but for those opened meanwhile: they are empty."""
        for count, (topic, index) in enumerate(self._opener.unused, 1):
            is_open = (topic.number, index) in opened
            for record in () if is_open else self._subscriptions.on_topic(topic.name):
                sample = PartitionSample(topic=topic.name, partition=index, committed=0, lag=0)
                depths.setdefault(record.number, _Depths()).partitions.append(sample)
            if count % _SLICE == 0:
                await asyncio.sleep(0)

    async def _unseen_time(self, log: LogReader, subscription: int, offset: Offset) -> int | None:
        """When a message that the subscription has not looked at was published, if that is known."""
        known = self._unseen_times.get((log, subscription))
        if known is not None and known[0] == offset:
            return known[1]
        try:
            entries = log.read_tail(offset, 1)
            if entries is None and self._reads_left:
                self._reads_left -= 1
                entries = await log.read(offset, 1)
        except QuiverError:
            return None  # retention or a deletion was quicker
        if not entries:
            return None
        self._unseen_times[log, subscription] = offset, entries[0].append_time
        return entries[0].append_time

    def _forget_closed(self, opened: set[LogReader]) -> None:
        for place in [place for place in self._unseen_times if place[0] not in opened]:
            del self._unseen_times[place]
