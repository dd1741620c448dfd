"""The partitions of this node: opened when they are first needed, closed with the node.

A partition whose log failed stays here, readable, until it can be opened again: after a full disk as
soon as there is space, after another failure at growing intervals.
"""

from __future__ import annotations

import asyncio

import structlog

from quiver.broker.catalog import TopicRecord
from quiver.broker.partition import Partition
from quiver.errors import PartitionNotFound, QuiverError, ShuttingDown
from quiver.log.disk import Disk
from quiver.log.partition_log import RunBlocking
from quiver.log.settings import LogSettings
from quiver.model.clock import Clock
from quiver.model.topic import TopicSettings

_TAIL_BYTES_MAX = 8 << 20
_TAIL_BYTES_MIN = 64 << 10

logger = structlog.get_logger()

Place = tuple[str, int]
"""A topic's name and the index of a partition."""


class Partitions:
    def __init__(
        self,
        folder: str,
        *,
        disk: Disk,
        clock: Clock,
        run_blocking: RunBlocking,
        tail_bytes_total: int,
    ) -> None:
        self._folder = folder
        self._disk = disk
        self._clock = clock
        self._run_blocking = run_blocking
        self._tail_bytes_total = tail_bytes_total
        self._open: dict[Place, Partition] = {}
        self._opening: dict[Place, asyncio.Task[Partition]] = {}
        self._retry_at: dict[Place, tuple[float, float]] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._open)

    def ready(self, topic: str, index: int) -> Partition | None:
        """The partition if it is open already."""
        return self._open.get((topic, index))

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
        place = (record.name, index)
        known = self._open.get(place)
        if known is not None:
            return known
        if self._closed:
            raise ShuttingDown()
        opening = self._opening.get(place)
        if opening is None:
            opening = asyncio.create_task(self._open_partition(record, index))
            self._opening[place] = opening
            opening.add_done_callback(lambda _: self._opening.pop(place, None))
        return await asyncio.shield(opening)

    async def _open_partition(self, record: TopicRecord, index: int) -> Partition:
        partition = await Partition.open(
            f"{self._folder}/{record.folder}/{index}",
            self._log_settings(record.settings),
            disk=self._disk,
            clock=self._clock,
            run_blocking=self._run_blocking,
        )
        self._open[record.name, index] = partition
        return partition

    def reconfigure(self, record: TopicRecord) -> None:
        """Apply a topic's settings to its open partitions."""
        for (topic, _), partition in self._open.items():
            if topic == record.name:
                partition.log.reconfigure(self._log_settings(record.settings))

    async def remove(self, record: TopicRecord) -> None:
        """Close a deleted topic's partitions and remove its data."""
        places = [place for place in (*self._open, *self._opening) if place[0] == record.name]
        for place in places:
            if place in self._opening:
                await asyncio.wait([self._opening[place]])
            partition = self._open.pop(place, None)
            if partition is not None:
                await partition.close()
        folder = f"{self._folder}/{record.folder}"
        await self._run_blocking(lambda: _remove_folder(self._disk, folder))

    async def reopen_failed(self, records: dict[str, TopicRecord]) -> None:
        """Try to open again what failed, if its time has come."""
        now = self._clock.monotonic()
        for place, partition in self.opened():
            if partition.log.failure is None:
                continue
            due, pause = self._retry_at.get(place, (now, 1.0))
            if now < due or place[0] not in records:
                continue
            self._retry_at[place] = (now + pause, min(60.0, 2 * pause))
            try:
                await partition.close()
                await self._open_partition(records[place[0]], place[1])
            except (QuiverError, OSError) as error:
                logger.error(
                    "partition is still failed",
                    topic=place[0],
                    partition=place[1],
                    error=str(error),
                )
            else:
                del self._retry_at[place]
                logger.info("partition is open again", topic=place[0], partition=place[1])

    async def close(self) -> None:
        self._closed = True
        if self._opening:
            await asyncio.wait(list(self._opening.values()))
        partitions, self._open = list(self._open.values()), {}
        results = await asyncio.gather(
            *(partition.close() for partition in partitions), return_exceptions=True
        )
        for partition, result in zip(partitions, results, strict=True):
            if isinstance(result, BaseException):
                logger.error("partition was not closed", folder=partition.folder, error=str(result))

    def _log_settings(self, settings: TopicSettings) -> LogSettings:
        share = self._tail_bytes_total // max(32, len(self._open) + 1)
        return LogSettings(
            durability=settings.durability,
            sync_interval_ms=settings.sync_interval_ms,
            segment_bytes=settings.segment_bytes,
            segment_age_s=settings.segment_age_s,
            tail_bytes=max(_TAIL_BYTES_MIN, min(_TAIL_BYTES_MAX, share)),
        )


def _remove_folder(disk: Disk, folder: str) -> None:
    if disk.exists(folder):
        disk.remove_folder(folder)
