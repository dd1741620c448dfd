"""Copies one partition that this node leads from whoever leads it at the source.

Answers pass through stages: one is fetched while those before it are checked, submitted to the log, and
written and synced. Each stage holds two at most, so a partition that is behind has six in memory.

Whatever fails is tried again, for as long as it takes: from the end of the local log on, which is all there
is to remember.
"""

from __future__ import annotations

import asyncio
from functools import partial

import structlog

from quiver.aio import cancel_and_wait, first_of
from quiver.broker.mirror.log_copy import LogCopy
from quiver.broker.mirror.partition_copy import Checked, PartitionCopy, Stored, checked_entries
from quiver.broker.mirror.progress import PartitionProgress
from quiver.broker.mirror.source import unpacked
from quiver.broker.topics.catalog import TopicRecord
from quiver.client.transport.backoff import RetryBackoff
from quiver.edge.mirror.environment import MirrorEnvironment
from quiver.edge.mirror.link import SourceLink
from quiver.errors import (
    CorruptLog,
    InvalidBatch,
    MirrorDiverged,
    QuiverError,
    TopicNotFound,
)
from quiver.model.ids import Microseconds, Offset
from quiver.protocol import FetchLog, LogFetched

WAIT_S = 20.0
"""How long the source keeps a fetch waiting while there is nothing."""
_BACKOFF = RetryBackoff(first_s=0.1, most_s=15.0)
_BROKEN_S = 30.0
"""How often a source that has diverged is asked again."""
_DOES_NOT_PASS = (MirrorDiverged, TopicNotFound, InvalidBatch)

logger = structlog.get_logger()

_Answer = tuple[LogFetched, list[Checked]]
_Submitted = tuple[LogFetched, Offset, Stored]
"""An answer, where the copy ends with it, and its entries on their way into the log."""


class PartitionPuller:
    """``run`` until it is cancelled. ``progress`` says how far it is."""

    def __init__(
        self,
        record: TopicRecord,
        index: int,
        link: SourceLink,
        progress: PartitionProgress,
        environment: MirrorEnvironment,
    ) -> None:
        assert record.origin is not None
        self._record = record
        self._origin = record.origin
        self._index = index
        self._link = link
        self._mirrors = environment.mirrors
        self.progress = progress
        self._clock = environment.clock
        self._run_checks = environment.run_checks
        self._failures = 0
        self._chance = environment.chance()

    async def run(self) -> None:
        while True:
            try:
                await self._copy()
            except _DOES_NOT_PASS as error:
                self._report(error, is_broken=True)
                await self._clock.sleep(_BROKEN_S)
            except (QuiverError, OSError) as error:
                self._failures += 1
                self._report(error, is_broken=False)
                await self._clock.sleep(_BACKOFF.pause_s(self._failures, self._chance))

    def _report(self, error: Exception, *, is_broken: bool) -> None:
        text = error.message if isinstance(error, QuiverError) else str(error)
        if (self.progress.error, self.progress.is_broken) != (text, is_broken):
            log = logger.error if is_broken else logger.info
            log(
                "partition is not copied",
                mirror=self._origin.mirror,
                topic=self._record.name,
                partition=self._index,
                error=text,
            )
        self.progress.failed(text, is_broken=is_broken)

    async def _copy(self) -> None:
        """Copy until something fails."""
        target = await self._mirrors.partition_copy(self._record, self._index)
        self.progress.opened(target.gaps)
        await target.settle()
        self.progress.settled(target.end)
        copy = LogCopy(target.end, await target.last())
        answers: asyncio.Queue[_Answer] = asyncio.Queue(1)
        submitted: asyncio.Queue[_Submitted] = asyncio.Queue(1)
        ended = await first_of(
            self._receive(copy, answers),
            self._submit(copy, target, answers, submitted),
            self._acknowledge(copy, submitted),
        )
        ended.result()

    async def _receive(self, copy: LogCopy, answers: asyncio.Queue[_Answer]) -> None:
        """Fetch and check. The next fetch is under way while an answer is checked."""
        fetching = asyncio.create_task(self._fetch(copy))
        try:
            while True:
                reply, body = await fetching
                start, end = Offset(reply.start_offset), Offset(reply.next_offset)
                copy.on_answer(start, end, Offset(reply.read_to), reply.epoch, reply.left_bytes)
                self._failures = 0
                await self._link.pace(len(body))
                fetching = asyncio.create_task(self._fetch(copy))
                await answers.put((reply, await self._run_checks(partial(_opened, reply, body))))
                del body  # or it would be kept until the next one has come
        finally:
            await cancel_and_wait(fetching)

    async def _submit(
        self,
        copy: LogCopy,
        target: PartitionCopy,
        answers: asyncio.Queue[_Answer],
        submitted: asyncio.Queue[_Submitted],
    ) -> None:
        """Give entries to the log, while those before them are written and synced."""
        while True:
            reply, entries = await answers.get()
            received = copy.on_entries(
                Offset(reply.start_offset),
                Offset(reply.read_to),
                [entry for entry, _, _ in entries],
            )
            stored = await self._store(target, received.gap, entries)
            await submitted.put((reply, copy.end, stored))
            del entries, received

    async def _acknowledge(self, copy: LogCopy, submitted: asyncio.Queue[_Submitted]) -> None:
        while True:
            reply, end, stored = await submitted.get()
            await stored.wait()
            self.progress.copied(copy, reply, end)

    async def _fetch(self, copy: LogCopy) -> tuple[LogFetched, memoryview]:
        """The first fetch waits for nothing: it says where the source is."""
        wait_s = 0.0 if copy.is_behind else WAIT_S
        request = FetchLog(
            topic=self._origin.topic,
            partition=self._index,
            offset=copy.next_fetch,
            number=self._origin.number,
            cluster=self._origin.cluster,
            epoch=copy.epoch,
            last=copy.last,
            bytes_max=min(copy.bytes_max, self._link.fetch_bytes_max()),
            wait_ms=round(wait_s * 1000),
            compression=self._link.compression,
        )
        return await self._link.fetch(request, self._origin.topic, self._index, wait_s)

    async def _store(
        self, target: PartitionCopy, gap: tuple[Offset, Offset] | None, entries: list[Checked]
    ) -> Stored:
        if gap is not None:
            begin, end = gap
            logger.error(
                "retention at the source removed messages before they were copied",
                mirror=self._origin.mirror,
                topic=self._record.name,
                partition=self._index,
                start_offset=begin,
                next_offset=end,
                messages=end - begin,
            )
            now = Microseconds(self._clock.time_us())
            await target.skip(begin, end, now, self._require_mirrored)
        return await target.append(entries, self._require_mirrored)

    def _require_mirrored(self) -> None:
        """Nothing of the source is stored once the copy has been promoted."""
        if self._mirrors.current(self._record) is None:
            raise CorruptLog("the topic is mirrored no more")


def _opened(reply: LogFetched, body: memoryview) -> list[Checked]:
    return checked_entries(unpacked(body, reply.compression, reply.size))
