"""Background work of a broker: retention, reopening failed partitions, watching the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import structlog

from quiver.aio import cancel_and_wait
from quiver.broker.partition.partitions import Partitions
from quiver.broker.subscription.directory import SubscriptionDirectory
from quiver.broker.topics.catalog import TopicCatalog, TopicRecord
from quiver.errors import DiskFull, QuiverError
from quiver.log.retention import RetentionLimits
from quiver.model.clock import Clock
from quiver.model.topic import Retention
from quiver.model.units import size_text

logger = structlog.get_logger()


class MaintenanceLimits(msgspec.Struct, frozen=True, kw_only=True):
    retention_interval_s: float = 60
    upkeep_interval_s: float = 1
    free_bytes_min: int = 256 << 20
    """Publishing stops while the disk has less free space than this."""


class Maintenance:
    """``start`` it, and ``stop`` it. ``free_bytes_of`` asks the disk."""

    def __init__(
        self,
        topics: TopicCatalog,
        partitions: Partitions,
        subscriptions: SubscriptionDirectory,
        limits: MaintenanceLimits,
        *,
        clock: Clock,
        free_bytes_of: Callable[[], Awaitable[int]],
        on_unread_lost: Callable[[int], object],
    ) -> None:
        self.disk_is_full = False
        self.free_bytes: int | None = None
        self._topics = topics
        self._partitions = partitions
        self._subscriptions = subscriptions
        self._limits = limits
        self._clock = clock
        self._free_bytes_of = free_bytes_of
        self._on_unread_lost = on_unread_lost
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._check_disk()
        self._task = asyncio.create_task(self._keep_up())

    async def stop(self) -> None:
        await cancel_and_wait(self._task)

    async def _keep_up(self) -> None:
        next_retention = self._clock.monotonic() + self._limits.retention_interval_s
        while True:
            await self._clock.sleep(self._limits.upkeep_interval_s)
            try:
                await self._check_disk()
                self._subscriptions.tick()
                if not self.disk_is_full:
                    await self._partitions.reopen_failed(
                        {record.number: record for record in self._topics.topics()}
                    )
                if self._clock.monotonic() >= next_retention:
                    next_retention = self._clock.monotonic() + self._limits.retention_interval_s
                    await self.retain()
            except Exception as error:
                logger.error("upkeep failed", exc_info=error)

    # ------------------------------------------------------------------ retention

    async def retain(self) -> None:
        """Drop what the topics' retention no longer keeps."""
        for record in list(self._topics.topics()):
            for index in self._partitions.led(record):
                try:
                    await self._retain(record, index)
                except QuiverError as error:
                    names = {"topic": record.name, "partition": index}
                    logger.error("retention failed", **names, error=str(error))

    async def _retain(self, record: TopicRecord, index: int) -> None:
        log = (await self._partitions.get(record, index)).log
        if log.failure is not None:
            return
        before = log.start_offset
        start = await log.retain(await self._limits_of(record, index))
        if start > before:
            logger.info(
                "retention removed messages",
                topic=record.name,
                partition=index,
                messages=start - before,
                start_offset=start,
            )
        self._on_unread_lost(await self._subscriptions.pass_over_lost(record, index))

    async def _limits_of(self, record: TopicRecord, index: int) -> RetentionLimits:
        limits = _limits(record.settings.retention)
        if record.settings.retention.acked:
            floor = await self._subscriptions.floor(record, index)
            limits = msgspec.structs.replace(limits, before=floor)
        return limits

    # ------------------------------------------------------------------ the disk

    def require_space(self) -> None:
        """``DiskFull`` while the disk has less free space than it should."""
        if self.disk_is_full:
            least = self._limits.free_bytes_min
            raise DiskFull(
                f"the node's disk has {(self.free_bytes or 0) // 1_000_000:,} MB free, and "
                f"limits.free_bytes_min is {size_text(least)}: publishing resumes by itself when "
                "there is space",
                free_bytes=self.free_bytes,
                free_bytes_min=least,
            )

    async def _check_disk(self) -> None:
        free = await self._free_bytes_of()
        full = free < self._limits.free_bytes_min
        if full != self.disk_is_full:
            logger.warning("disk is full" if full else "disk has space again", free_bytes=free)
        self.disk_is_full, self.free_bytes = full, free


def _limits(retention: Retention) -> RetentionLimits:
    age_s = retention.age_s
    return RetentionLimits(
        age_us=None if age_s is None else round(age_s * 1_000_000),
        bytes=retention.size,
        messages=retention.messages,
    )
