"""Retention: excludes what the topics' settings no longer keep, partition by partition.

Only the leader of a partition decides; followers begin where it begins. First it asks the log what
the limits would delete if every message were finished. Only where that is something does it ask the
subscriptions, so that partitions with nothing to delete cost next to nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog
from msgspec.structs import replace

from quiver.broker.partition.partition import Partition
from quiver.broker.partition.partitions import Partitions, Place
from quiver.broker.subscription.unfinished import Unfinished
from quiver.broker.topic_limits import TopicLimits
from quiver.broker.topics.catalog import TopicCatalog, TopicRecord
from quiver.errors import QuiverError
from quiver.log.retention import RetentionLimits
from quiver.model.clock import Clock
from quiver.model.ids import Microseconds, Offset
from quiver.model.topic import Overflow, Retention, Unread

_SLICE = 500
"""After so many topics others have their turn."""

logger = structlog.get_logger()


class Retainer:
    """``on_unread_lost`` is told how many messages were deleted that a subscription had not read."""

    def __init__(
        self,
        topics: TopicCatalog,
        partitions: Partitions,
        unfinished: Unfinished,
        topic_limits: TopicLimits,
        *,
        clock: Clock,
        on_unread_lost: Callable[[int], object],
        source_start: Callable[[Place], Offset | None],
    ) -> None:
        """``source_start``: where a partition of a mirrored topic begins at its source, if known."""
        self._source_start = source_start
        self._topics = topics
        self._partitions = partitions
        self._unfinished = unfinished
        self._topic_limits = topic_limits
        self._clock = clock
        self._on_unread_lost = on_unread_lost

    async def retain(self) -> None:
        """Exclude what the topics' retention no longer keeps. Its space comes back with its segment."""
        for count, record in enumerate(list(self._topics.topics()), 1):
            if count % _SLICE == 0:
                await asyncio.sleep(0)
            led = self._partitions.led(record)
            indexes = [index for index in led if not self._partitions.is_unused(record, index)]
            if record.is_restoring or record.failback is not None or not indexes:
                continue  # of a backup, its subscriptions come after its messages
            if record.origin is not None:
                await self._follow_source(record)
                continue
            try:
                limits = await self._topic_limits.divided(
                    record, _limits(record.settings.retention), indexes
                )
            except QuiverError as error:
                logger.error("retention failed", topic=record.name, error=str(error))
                continue
            for index, own in limits.items():
                try:
                    await self._retain(record, index, own)
                except QuiverError as error:
                    names = {"topic": record.name, "partition": index}
                    logger.error("retention failed", **names, error=str(error))

    async def _follow_source(self, record: TopicRecord) -> None:
        """A mirrored topic begins where its source begins."""
        for index in self._partitions.led(record):
            start = self._source_start((record.number, index))
            try:
                partition = await self._partitions.get(record, index)
                if start is not None and start > partition.log.start_offset:
                    await self._pass_over_lost(record, index, start)
                    await partition.retain(RetentionLimits(before=start).capped(start))
            except QuiverError as error:
                names = {"topic": record.name, "partition": index}
                logger.error("retention failed", **names, error=str(error))

    async def _retain(self, record: TopicRecord, index: int, limits: RetentionLimits) -> None:
        partition = await self._partitions.get(record, index)
        log = partition.committed
        if log.failure is not None:
            return
        before, stored_from = log.start_offset, log.stored_from
        if record.settings.retention.acked:
            passed = await self._unfinished.first_for_good(record, index, log.next_offset)
            limits = replace(limits, before=passed)
        goal = await log.retain(_at_most(limits, record.settings.retention), dry_run=True)
        if goal > before:
            await self._remove(record, index, partition, limits, goal)
        if log.stored_from > stored_from:
            logger.info(
                "retention removed messages",
                topic=record.name,
                partition=index,
                messages=log.stored_from - stored_from,
                start_offset=log.start_offset,
            )
        await self._pass_over_lost(record, index, log.start_offset)

    async def _remove(
        self,
        record: TopicRecord,
        index: int,
        partition: Partition,
        limits: RetentionLimits,
        goal: Offset,
    ) -> None:
        """Delete what is before ``goal``, but for what subscriptions need."""
        retention = record.settings.retention
        if self._unfinished.keeps(record):
            first = await self._unfinished.first_for_good(record, index, goal)
            limits = replace(limits, unfinished_from=first)
            if retention.unread_overflow is Overflow.DROP:
                limits = await self._with_overflow(record, index, limits, goal)
        elif retention.unread is not Unread.DROP:
            first = await self._first_scheduled(record, index, goal, limits.age_us)
            limits = limits if first is None else limits.capped(first)
        start = await partition.committed.retain(limits, dry_run=True)
        if start > partition.log.start_offset:
            await self._pass_over_lost(record, index, start)
            await partition.retain(RetentionLimits(before=start).capped(start))

    async def _pass_over_lost(self, record: TopicRecord, index: int, start: Offset) -> None:
        """What is lost is told before it is deleted: a crash in between hides nothing."""
        self._on_unread_lost(await self._unfinished.pass_over_lost(record, index, start))

    async def _with_overflow(
        self, record: TopicRecord, index: int, limits: RetentionLimits, goal: Offset
    ) -> RetentionLimits:
        retention = record.settings.retention
        age_us = _microseconds(retention.unread_age_s)
        return replace(
            limits,
            unfinished_age_us=age_us,
            unfinished_bytes=retention.unread_size,
            scheduled_from=await self._first_scheduled(record, index, goal, age_us),
        )

    async def _first_scheduled(
        self, record: TopicRecord, index: int, goal: Offset, age_us: int | None
    ) -> Offset | None:
        """The first unfinished message that has not been due for as long as ``age_us``."""
        time = Microseconds(self._clock.time_us() - (age_us or 0))
        return await self._unfinished.first_scheduled(record, index, goal, time)


def _limits(retention: Retention) -> RetentionLimits:
    return RetentionLimits(
        age_us=_microseconds(retention.age_s),
        bytes=retention.size,
        messages=retention.messages,
    )


def _at_most(limits: RetentionLimits, retention: Retention) -> RetentionLimits:
    """Limits that delete at least what is to be deleted, finished or not."""
    if retention.unread_overflow is Overflow.REFUSE:
        return limits
    return replace(
        limits,
        age_us=_least(limits.age_us, _microseconds(retention.unread_age_s)),
        bytes=_least(limits.bytes, retention.unread_size),
    )


def _least(one: int | None, other: int | None) -> int | None:
    return min((limit for limit in (one, other) if limit is not None), default=None)


def _microseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1_000_000)
