"""Refuses publishes for want of space: on the disk, or in a partition full of unread messages.

The limit of a partition holds at every moment: what was measured a moment ago, and all that was
admitted since, stay below it. Maintenance measures anew every second, so publishing goes on a second
after enough was finished. A topic without such a limit costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quiver.broker.partition.partition import Partition
from quiver.broker.partition.producers.in_flight import Placed
from quiver.broker.subscription.unfinished import Unfinished
from quiver.broker.topics.catalog import TopicCatalog, TopicRecord
from quiver.errors import QuiverError, TopicFull
from quiver.model.clock import Clock
from quiver.model.ids import Microseconds
from quiver.model.units import duration_text, size_text


class _Level:
    """How full one partition is."""

    def __init__(self, topic: str, index: int, partition: Partition) -> None:
        self.topic = topic
        self.index = index
        self.partition = partition
        self.admitted = 0
        """Bytes that were admitted, and of these the bytes whose fate is known."""
        self.settled = 0
        self._measured = 0
        self._admitted_then = 0
        self.is_late = False

    @property
    def size(self) -> int:
        return self._measured + self.admitted - self._admitted_then

    async def measure(self, unfinished: Unfinished, record: TopicRecord, now: int) -> None:
        log, age_s = self.partition.committed, record.settings.retention.unread_age_s
        admitted, in_flight = self.admitted, self.admitted - self.settled
        first = await unfinished.first(record, self.index, log.next_offset)
        size = 0 if first is None else await log.size_from(first)
        self._measured, self._admitted_then = size + in_flight, admitted
        if age_s is not None:
            late = Microseconds(now - round(age_s * 1e6))
            self.is_late = await unfinished.has_before(record, self.index, late)


class PublishSpace:
    def __init__(
        self,
        topics: TopicCatalog,
        unfinished: Unfinished,
        clock: Clock,
        *,
        require_disk: Callable[[], None],
    ) -> None:
        self._topics = topics
        self._unfinished = unfinished
        self._clock = clock
        self.require_disk = require_disk
        """``DiskFull`` while the disk has too little space."""
        self._levels: dict[tuple[int, int], _Level] = {}

    def is_known(self, record: TopicRecord, index: int, partition: Partition) -> bool:
        """Whether ``refusal`` can answer; else ``learn`` first."""
        if not record.settings.retention.refuses:
            return True
        level = self._levels.get((record.number, index))
        return level is not None and level.partition is partition

    async def learn(self, record: TopicRecord, index: int, partition: Partition) -> None:
        """Find out how full a partition is."""
        if not self.is_known(record, index, partition):
            level = _Level(record.name, index, partition)
            await level.measure(self._unfinished, record, self._clock.time_us())
            self._levels.setdefault((record.number, index), level)
            if self._levels[record.number, index].partition is not partition:
                self._levels[record.number, index] = level

    async def refresh(self) -> None:
        """Measure all that was published to, and forget what is there no more."""
        if not self._levels:
            return
        records = {record.number: record for record in self._topics.topics()}
        for place, level in list(self._levels.items()):
            record = records.get(place[0])
            if record is None or not record.settings.retention.refuses:
                del self._levels[place]
                continue
            try:
                await level.measure(self._unfinished, record, self._clock.time_us())
            except QuiverError:
                self._levels.pop(place, None)  # whoever publishes next finds out anew

    def refusal(self, record: TopicRecord, index: int, size: int) -> TopicFull | None:
        """The error for a batch of this size, if the partition is too full for it."""
        level = self._levels.get((record.number, index))
        retention = record.settings.retention
        if level is None or not retention.refuses:
            return None
        limit = retention.unread_size
        if limit is not None and level.size and level.size + size > limit:
            return TopicFull(
                f"partition {index} of {record.name!r} has {size_text(level.size)} of unread "
                f"messages, and retention.unread_bytes is {size_text(limit)}: consume some",
                topic=record.name,
                setting="retention.unread_bytes",
            )
        if level.is_late:
            age = duration_text(retention.unread_age_s or 0)
            return TopicFull(
                f"partition {index} of {record.name!r} has unread messages older than {age}, its "
                "retention.unread_age: consume them",
                topic=record.name,
                setting="retention.unread_age",
            )
        return None

    def admitted(
        self, record: TopicRecord, index: int, size: int, placed: asyncio.Future[Placed]
    ) -> None:
        """A batch of this size is on its way into a partition."""
        level = self._levels.get((record.number, index))
        if level is not None:
            level.admitted += size
            placed.add_done_callback(lambda _: _settled(level, size))


def _settled(level: _Level, size: int) -> None:
    level.settled += size
