"""Fetches ahead of the reader: a little of every partition, within a bound.

Each partition has one fetch in flight and up to two answers buffered. The next fetch is sent as soon as
an answer arrives. Answers are returned in order of arrival, so no partition starves. A fetch that fails
temporarily is repeated from the same offset, so nothing is lost or repeated. A reader that follows a
topic also gets partitions that are split off, each after the earlier messages of its keys in its parent.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Coroutine
from typing import Any

import msgspec

from quiver.aio import TaskSet, retrieve_exception
from quiver.client.transport.backoff import RetryBackoff
from quiver.client.transport.cluster import Cluster, expect
from quiver.errors import OffsetOutOfRange, QuiverError, TopicNotFound
from quiver.model.batch import StoredBatch
from quiver.model.clock import Clock
from quiver.model.envelope import entries_in
from quiver.model.transaction import COMMITTED_ONLY
from quiver.protocol import Fetch, Fetched, PartitionInfo, TopicInfo

DEPTH = 2
"""Answers of one partition that may wait for the reader."""
FETCH_BYTES_MAX = 4 << 20
FETCH_BYTES_MIN = 64 << 10
AHEAD_BYTES = 64 << 20
"""What all partitions together may hold, as far as their least share allows it."""
WAIT_MS = 20_000
_WAIT_MS_MANY = 1_000
_WAITING_MAX = 256
"""Fetches that wait for data at a time; with more partitions each waits more briefly, in turn."""
_ANSWER_GRACE_S = 30.0


class Span(msgspec.Struct):
    """What is still to be read of a partition; without an end, reading goes on for good."""

    offset: int
    end: int | None


class Chunk(msgspec.Struct, frozen=True):
    """Entries of one partition, in order; only offsets from ``begin`` to before ``end`` count.

    Offsets in between that are in no entry have no message, and there may be no entry at all.
    """

    topic: str
    topic_number: int
    partition: int
    entries: list[StoredBatch]
    begin: int
    end: int


class ReadAhead:
    """Lives on one event loop; ``close`` it, whatever happens."""

    def __init__(
        self,
        cluster: Cluster,
        info: TopicInfo,
        spans: dict[int, Span],
        *,
        follow: bool,
        clock: Clock,
        grows: bool = False,
        zone: str | None = None,
        isolation: str = COMMITTED_ONLY,
    ) -> None:
        """With a ``zone``, replicas in it are read from. ``grows``: with partitions that are new."""
        self._zone = zone
        self._isolation = isolation
        self._by_leader: set[int] = set()
        """Partitions whose replica nearby does not have what is wanted yet: the leader is asked."""
        self._cluster = cluster
        self._topic = info.name
        self._topic_number = info.number
        self._clock = clock
        self._chance = random.Random()
        self._backoff = RetryBackoff()
        self._follow = follow
        self._loop = asyncio.get_running_loop()
        share = AHEAD_BYTES // (DEPTH * max(1, len(spans)))
        self._bytes_max = max(FETCH_BYTES_MIN, min(FETCH_BYTES_MAX, share))
        self._wait_ms = WAIT_MS if len(spans) <= _WAITING_MAX else _WAIT_MS_MANY
        self._turns = asyncio.Semaphore(_WAITING_MAX)
        self._slots = {partition: asyncio.Semaphore(DEPTH) for partition in spans}
        self._ready: deque[Chunk] = deque()
        self._error: QuiverError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._spans = spans
        self._layout = info.layout if grows else None
        """The newest that is known, if new partitions are read."""
        self._progress = asyncio.Event()
        self._tasks = TaskSet()
        for partition, span in spans.items():
            self._begin(self._read(partition, span))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.start(work).add_done_callback(self._done)

    async def next_chunk(self) -> Chunk | None:
        """The next of any partition; ``None`` when every partition is read to its end."""
        while not self._ready:
            if self._error is not None:
                raise self._error.with_traceback(None)
            if not self._tasks:
                return None
            self._waiter = self._loop.create_future()
            await self._waiter
        chunk = self._ready.popleft()
        self._slots[chunk.partition].release()
        return chunk

    async def close(self) -> None:
        self._cancel()
        self._ready.clear()
        await self._tasks.wait()

    def abandon(self) -> None:
        """Stop without waiting; from any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    # ------------------------------------------------------------------ one partition

    async def _read(self, partition: int, span: Span) -> None:
        while span.end is None or span.offset < span.end:
            await self._slots[partition].acquire()
            chunk = await self._next_of(partition, span)
            self._ready.append(chunk)
            span.offset = chunk.end
            self._wake_reader()
            self._progress.set()

    async def _next_of(self, partition: int, span: Span) -> Chunk:
        """Fetch until there is something, through every error that may pass."""
        failures, deadline = 0, self._clock.monotonic() + self._cluster.timeout_s
        while True:
            try:
                async with self._turns:
                    chunk = await self._fetch(partition, span)
            except QuiverError as error:
                is_late = not self._follow and self._clock.monotonic() >= deadline
                if not error.retryable or is_late:
                    raise
                failures += 1
                self._cluster.doubt(self._topic)
                self._cluster.forget(self._topic)
                await self._clock.sleep(self._backoff.pause_s(failures, self._chance))
                continue
            failures = 0
            if chunk is not None:
                return chunk

    async def _fetch(self, partition: int, span: Span) -> Chunk | None:
        layout = await self._cluster.layout(self._topic)
        leader = address = layout.address(partition)
        if self._zone is not None and partition not in self._by_leader:
            address = layout.nearest(partition, self._zone)
        self._by_leader.discard(partition)
        channel = await self._cluster.pool.channel(address)
        wait_ms = self._wait_ms if self._follow else 0
        request = Fetch(
            topic=self._topic,
            partition=partition,
            offset=span.offset,
            bytes_max=self._bytes_max,
            wait_ms=wait_ms,
            any_replica=address != leader,
            isolation=self._isolation,
        )
        answer, body = await channel.call(request, timeout_s=wait_ms / 1000 + _ANSWER_GRACE_S)
        fetched = expect(Fetched, answer)
        if fetched.topic_number != self._topic_number:
            raise TopicNotFound(
                f"topic {self._topic!r} was deleted and created again while it was read",
                topic=self._topic,
            )
        self._learn(fetched.layout)
        entries = [entry for entry in entries_in(body) if entry.next_offset > span.offset]
        end = max(fetched.read_to, entries[-1].next_offset if entries else 0)
        if end <= span.offset:
            if address != leader:
                self._by_leader.add(partition)
                return None
            if not self._follow:
                raise OffsetOutOfRange(
                    f"partition {partition} of topic {self._topic!r} ends at offset "
                    f"{fetched.next_offset}, before the requested end {span.end}",
                    start_offset=fetched.start_offset,
                    next_offset=fetched.next_offset,
                )
            return None
        return Chunk(
            self._topic,
            fetched.topic_number,
            partition,
            entries,
            span.offset,
            end if span.end is None else min(end, span.end),
        )

    # ------------------------------------------------------------------ new partitions

    def _learn(self, layout: int) -> None:
        if self._layout is not None and layout > self._layout:
            self._layout = layout
            self._begin(self._grow(layout))

    async def _grow(self, layout: int) -> None:
        """Read the partitions that there are since this layout, too."""
        end = next(iter(self._spans.values())).end
        try:
            found = await self._cluster.refresh(self._topic)
        except QuiverError:
            found = None
        if found is None or found.version < layout:
            self._layout = layout - 1  # whoever answers next says so again
            return
        for one in found.info.partitions:
            if one.index not in self._slots:
                self._slots[one.index] = asyncio.Semaphore(DEPTH)
                self._spans[one.index] = Span(0, end)
                self._begin(self._read_after_parent(one))

    async def _read_after_parent(self, one: PartitionInfo) -> None:
        parent = None if one.parent is None else self._spans.get(one.parent)
        while parent is not None and parent.offset < (one.parent_offset or 0):
            self._progress.clear()
            await self._progress.wait()
        await self._read(one.index, self._spans[one.index])

    # ------------------------------------------------------------------ endings

    def _done(self, task: asyncio.Task[None]) -> None:
        error = retrieve_exception(task)
        if error is not None and self._error is None:
            self._error = (
                error
                if isinstance(error, QuiverError)
                else QuiverError(f"reading failed: {error!r}")
            )
        self._wake_reader()

    def _wake_reader(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
