"""Background work of a broker: retention, limits, reopening failed partitions, watching the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import structlog

from quiver.aio import cancel_and_wait
from quiver.broker.partition.partitions import Partitions
from quiver.broker.publish.space import PublishSpace
from quiver.broker.retention import Retainer
from quiver.broker.topics.catalog import TopicCatalog
from quiver.errors import DiskFull
from quiver.model.clock import Clock
from quiver.model.units import size_text

logger = structlog.get_logger()


class MaintenanceLimits(msgspec.Struct, frozen=True, kw_only=True):
    retention_interval_s: float = 60
    upkeep_interval_s: float = 1
    free_bytes_min: int = 256 << 20
    """Publishing stops while the disk has less free space than this."""


class Maintenance:
    """``start`` it, and ``stop`` it. ``tick`` is called each second; ``free_bytes_of`` asks the disk."""

    def __init__(
        self,
        topics: TopicCatalog,
        partitions: Partitions,
        tick: Callable[[], None],
        retainer: Retainer,
        space: PublishSpace,
        limits: MaintenanceLimits,
        *,
        clock: Clock,
        free_bytes_of: Callable[[], Awaitable[int]],
    ) -> None:
        self.disk_is_full = False
        self.free_bytes: int | None = None
        self._topics = topics
        self._partitions = partitions
        self._tick = tick
        self._retainer = retainer
        self._space = space
        self._limits = limits
        self._clock = clock
        self._free_bytes_of = free_bytes_of
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
                self._tick()
                await self._space.refresh()
                if not self.disk_is_full:
                    await self._partitions.reopen_failed(self._topics.topics)
                if self._clock.monotonic() >= next_retention:
                    next_retention = self._clock.monotonic() + self._limits.retention_interval_s
                    await self._retainer.retain()
            except Exception as error:
                logger.error("upkeep failed", exc_info=error)

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
