"""The partitions of this node: opened when first needed, closed with the node.

A partition whose log failed stays readable until it is reopened: after a full disk as soon as there is
space, after another failure at growing intervals. Partitions are identified by their topic's number,
so one of a deleted topic is never taken for one of a new topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

import structlog

from quiver.aio import SingleFlight, TaskSet
from quiver.broker.partition.listener import PartitionListener
from quiver.broker.partition.partition import Partition
from quiver.broker.partition.storage import Storage
from quiver.broker.topics.catalog import TopicRecord
from quiver.errors import (
    LeaderChanged,
    NotLeader,
    PartitionNotFound,
    QuiverError,
    ShuttingDown,
    TopicNotFound,
)
from quiver.log.group_commit import Committed
from quiver.log.log_context import LogContext
from quiver.log.settings import LogSettings
from quiver.metrics.traffic import TopicCounts, Traffic
from quiver.model.clock import Clock
from quiver.model.topic import TopicSettings

_TAIL_BYTES_MAX = 8 << 20
_SLOW_S = 1.0
_COMPLAINT_S = 10.0
"""A slow disk is complained of no more often than this."""

logger = structlog.get_logger()

Place = tuple[int, int]
"""A topic's number and the index of a partition."""
Prepare = Callable[[TopicRecord, int, Partition], Awaitable[None]]


class Partitions:
    def __init__(
        self,
        storage: Storage,
        *,
        clock: Clock,
        exists: Callable[[TopicRecord], bool],
        logs: LogContext | None = None,
        traffic: Traffic | None = None,
        prepare: Prepare | None = None,
    ) -> None:
        """``exists`` says whether a topic has not been deleted meanwhile; ``prepare`` is called with
        each partition that was opened, before anybody gets it."""
        self.placement = storage.placement
        self._store = storage.partitions
        self._clock = clock
        self._exists = exists
        self._logs = logs or LogContext()
        self.caches = self._logs.caches
        self._tail_bytes = _TAIL_BYTES_MAX
        if self.caches is not None:
            self._tail_bytes = min(_TAIL_BYTES_MAX, self.caches.bytes_max)
        self._traffic = traffic or Traffic()
        self._open: dict[Place, Partition] = {}
        self._opening: SingleFlight[Place, Partition] = SingleFlight()
        self._retry_at: dict[Place, tuple[float, float]] = {}
        self._closing = TaskSet()
        self._closed = False
        self._next_complaint = 0.0
        self._prepare = prepare or _nothing
        self.load = self._store.load

    def __len__(self) -> int:
        return len(self._open)

    def ready(self, record: TopicRecord, index: int) -> Partition | None:
        """The partition if it is open already."""
        return self._open.get((record.number, index))

    def is_unused(self, record: TopicRecord, index: int) -> bool:
        """Whether a partition of this node is known to be empty, as nobody ever opened it."""
        if (record.number, index) in self._open or record.first_offsets:
            return False
        return self._store.is_unused(record)

    def opened(self) -> list[tuple[Place, Partition]]:
        return list(self._open.items())

    async def get(self, record: TopicRecord, index: int) -> Partition:
        """The partition, opened if need be; many may ask at once."""
        if not 0 <= index < len(record.first_hashes):
            raise PartitionNotFound(
                f"topic {record.name!r} has partitions 0 to {len(record.first_hashes) - 1}, "
                f"not {index}",
                topic=record.name,
                partition=index,
            )
        known = self._open.get((record.number, index))
        if known is not None:
            return known
        return await self._open_once(record, index)

    def led(self, record: TopicRecord) -> list[int]:
        """Those partitions of a topic that this node serves."""
        return [
            index
            for index in range(len(record.first_hashes))
            if self.placement.leads(record, index)
        ]

    async def _open_once(self, record: TopicRecord, index: int) -> Partition:
        """The partition, opened; whoever asks meanwhile waits for the same."""
        if self._closed:
            raise ShuttingDown()
        if not self._exists(record):
            raise TopicNotFound(f"topic {record.name!r} was deleted", topic=record.name)
        return await self._opening.run(
            (record.number, index), lambda: self._open_partition(record, index)
        )

    async def _open_partition(self, record: TopicRecord, index: int) -> Partition:
        place = (record.number, index)
        listener = PartitionListener(
            lost=lambda: self._lose(place),
            stored=partial(self._stored, self._traffic.topics.of(record.name)),
            state_stored=self._synced,
        )
        partition = await self._store.open(
            record, index, self.log_settings(record.settings), listener
        )
        try:
            await self._prepare(record, index, partition)
        except BaseException:
            await _close(partition)
            raise
        self._open[place] = partition
        if self._store.mends_itself and partition.log.failure is not None:
            self._lose(place)
            raise NotLeader(f"this node is not the leader of partition {index} of {record.name!r}")
        return partition

    def _lose(self, place: Place) -> None:
        """Another node serves the partition from now on."""
        partition = self._open.pop(place, None)
        if partition is not None:
            self._closing.start(_close(partition))

    def _stored(self, counts: TopicCounts, committed: Committed) -> None:
        counts.stored(committed.messages, committed.size, committed.batches)
        self._synced(committed)

    def _synced(self, committed: Committed) -> None:
        seconds = committed.sync_seconds
        if seconds is None:
            return
        self._traffic.fsync.add(seconds)
        if seconds >= _SLOW_S and self._clock.monotonic() >= self._next_complaint:
            self._next_complaint = self._clock.monotonic() + _COMPLAINT_S
            logger.warning("disk is slow", seconds=round(seconds, 3))

    def reconfigure(self, record: TopicRecord) -> None:
        """Apply a topic's settings to its open partitions."""
        for (number, _), partition in self._open.items():
            if number == record.number:
                partition.log.reconfigure(self.log_settings(record.settings))
                partition.window.window_us = record.settings.dedup_window_us
        self._store.reconfigure(record)

    async def cut(self, record: TopicRecord, index: int) -> Partition:
        """Drop the end of a partition that a failback has kept aside; the partition without it."""
        place = (record.number, index)

        async def cut() -> Partition:
            partition = self._open.get(place)
            if partition is not None and not self._store.mends_itself:
                del self._open[place]
                await _close(partition)
            await self._store.cut(record, index, self.log_settings(record.settings))
            return self._open.get(place) or await self._open_partition(record, index)

        await self._opening.wait(place)
        return await self._opening.run(place, cut)

    async def remove(self, record: TopicRecord) -> None:
        """Close the partitions of a topic that exists no more, and remove its data."""
        places = {place for place in (*self._open, *self._opening) if place[0] == record.number}
        for place in places:
            await self._opening.wait(place)
            self._retry_at.pop(place, None)
            partition = self._open.pop(place, None)
            if partition is not None:
                await _close(partition)
        await self._store.remove(record)

    async def reopen_failed(self, topics: Callable[[], Iterable[TopicRecord]]) -> None:
        """Try to open again what failed, if its time has come. It is readable meanwhile."""
        if self._store.mends_itself or not (self._logs.failed or self._retry_at):
            return
        records = {record.number: record for record in topics()}
        for place, partition in self.opened():
            now = self._clock.monotonic()
            record = records.get(place[0])
            due, pause = self._retry_at.get(place, (now, 1.0))
            if partition.failure is None or record is None or now < due:
                continue
            names = {"topic": record.name, "partition": place[1]}
            if place not in self._retry_at:
                logger.error("partition failed", **names, error=str(partition.failure))
            self._retry_at[place] = (now + pause, min(60.0, 2 * pause))
            try:
                await self._reopen(record, place[1], partition)
            except (QuiverError, OSError) as error:
                logger.error("partition is still failed", **names, error=str(error))
                continue
            self._retry_at.pop(place, None)
            logger.info("partition is open again", **names)

    async def _reopen(self, record: TopicRecord, index: int, partition: Partition) -> None:
        """Two of a kind must not write: the state log is let go of first, a good log is kept."""
        await partition.close_state()
        if partition.log.failure is None:
            await self._prepare(record, index, partition)
            return
        await self._open_once(record, index)
        await _close(partition)

    async def close(self) -> None:
        self._closed = True
        await self._opening.wait(*self._opening)
        partitions, self._open = list(self._open.values()), {}
        await asyncio.gather(*map(_close, partitions), *self._closing)

    def log_settings(self, settings: TopicSettings) -> LogSettings:
        return LogSettings(
            durability=settings.durability,
            sync_interval_ms=settings.sync_interval_ms,
            segment_bytes=settings.segment_bytes,
            segment_age_s=settings.segment_age_s,
            tail_bytes=self._tail_bytes,
        )


async def _nothing(_record: TopicRecord, _index: int, _partition: Partition) -> None:
    pass


async def _close(partition: Partition) -> None:
    """Close it as well as can be: recovery looks after what could not be written."""
    try:
        await partition.close()
    except (NotLeader, LeaderChanged):
        pass  # whoever leads it now looks after it
    except Exception as error:
        logger.error("partition was not closed well", folder=partition.folder, error=str(error))
