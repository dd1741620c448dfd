"""Promotes mirrored topics: the source is fenced and drained if it answers, then the copy is writable.

Without the source the copy goes on with what it has. The answer says which of the two it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from quiver.broker.definitions.topics import Topics
from quiver.broker.topics.catalog import TopicRecord
from quiver.edge.mirror.runner import MirrorRunner
from quiver.edge.mirror.running_mirror import RunningMirror
from quiver.errors import QuiverError
from quiver.model.mirror.origin import Origin
from quiver.model.transaction import TIMEOUT_S, TIMEOUT_S_MAX
from quiver.protocol import MirrorInfo, PartitionInfo, PromotedTopic, TopicInfo

_LOOK_S = 0.05

logger = structlog.get_logger()

Describe = Callable[[str], Awaitable[MirrorInfo]]
"""A mirror as all nodes of the cluster see it."""


class Promotion:
    """Of one topic. ``moved_to`` is what the source tells those who publish there.

    ``silent`` are the mirrors whose sources had not answered another topic in time: they are not waited
    for again.
    """

    def __init__(
        self,
        runner: MirrorRunner,
        topics: Topics,
        describe: Describe,
        moved_to: str,
        silent: set[str],
    ) -> None:
        self._runner = runner
        self._clock = runner.environment.clock
        self._topics = topics
        self._describe = describe
        self._moved_to = moved_to
        self._silent = silent
        self._waiting = ""
        """What is not so yet, in the words for an operator."""

    async def promote(self, record: TopicRecord, *, fence: bool, wait_s: float) -> PromotedTopic:
        assert record.source is not None
        done = PromotedTopic(
            name=record.name, source=record.source, is_fenced=False, is_complete=False
        )
        if record.failback is not None:
            done.error = "it was not a copy yet: its failback ends, and it goes on with what it has"
        elif fence and record.source.mirror in self._silent:
            done.error = f"the source had not answered within {wait_s:g} s for another topic"
        elif fence:
            self._waiting = "the source had not answered"
            try:
                async with asyncio.timeout(wait_s):
                    await self._fence(record, record.source, done)
            except TimeoutError:
                done.error = f"after {wait_s:g} s {self._waiting}"
                if not done.is_fenced:
                    self._silent.add(record.source.mirror)
            except (QuiverError, OSError) as error:
                done.error = str(error)
        await self._topics.promote(record.name)
        if done.error:
            logger.warning(
                "topic was promoted without its source", topic=record.name, error=done.error
            )
        return done

    async def _fence(self, record: TopicRecord, origin: Origin, done: PromotedTopic) -> None:
        """Stop the source, and wait until everything that it has is here."""
        running = await self._runner.get(origin.mirror)
        if running is None:
            done.error = f"mirror {origin.mirror!r} does not run here: nothing was fenced"
            return
        if not running.copies(record):
            done.error = f"mirror {origin.mirror!r} does not copy it any more: nothing was fenced"
            return
        await running.fence(origin.topic, self._moved_to)
        done.is_fenced = True
        source = await self._settled(origin, running)
        settled = self._clock.monotonic()
        while not await self._is_complete(record, source, running, settled):
            await self._clock.sleep(_LOOK_S)
        done.is_complete = True

    async def _settled(self, origin: Origin, running: RunningMirror) -> TopicInfo:
        """The topic at the source, once no transaction is open there that may have been committed.

        None begins there any more, and none is committed that was not before.
        """
        while True:
            source = await running.source_topic(origin.topic)
            waited_for = [one for one in source.partitions if not _is_settled(one)]
            if not waited_for:
                return source
            self._waiting = _unsettled(waited_for)
            await self._clock.sleep(_LOOK_S)

    async def _is_complete(
        self, record: TopicRecord, source: TopicInfo, running: RunningMirror, settled: float
    ) -> bool:
        copy = await self._topics.describe(record.name)
        ends = {one.index: one.next_offset for one in copy.partitions}
        for one in source.partitions:
            end = ends.get(one.index)
            if one.next_offset is None or end is None or end < one.next_offset:
                self._waiting = f"the last messages of partition {one.index} were not copied"
                return False
        if not running.record.settings.with_subscriptions:
            return True
        self._waiting = "the last state of its subscriptions was not copied"
        info = await self._describe(running.record.name)
        since_s = self._clock.monotonic() - settled
        lags = {
            one.index: one.state_lag_s
            for topic in info.topics
            if topic.name == record.name
            for one in topic.partitions
        }
        return all(
            (lag := lags.get(one.index)) is not None and lag < since_s for one in source.partitions
        )


def _unsettled(partitions: list[PartitionInfo]) -> str:
    """Which partitions of the source have open transactions, and for how long that may last."""
    opened = [str(one.index) for one in partitions if one.has_open_transactions]
    if not opened:
        return f"partition {partitions[0].index} had no leader at the source"
    which = f"partition {opened[0]}" if len(opened) == 1 else f"partitions {', '.join(opened)}"
    return (
        f"a transaction was still open in {which} of the source: it ends when its client ends it, or its "
        f"time limit is over ({TIMEOUT_S:g} s unless it was given more, {TIMEOUT_S_MAX:g} s at most). A "
        "promote with a longer timeout waits for that"
    )


def _is_settled(partition: PartitionInfo) -> bool:
    return partition.next_offset is not None and not partition.has_open_transactions
