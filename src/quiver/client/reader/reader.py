"""Reads a topic: record batches for replay and notebooks, or messages one by one.

Reading changes nothing. A reader fixes its range on first use, bounds its memory, and survives lost
connections without losing or repeating messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from types import TracebackType
from typing import Self

import msgspec
import pyarrow as pa

from quiver.client.producer.outgoing import is_partition
from quiver.client.reader.columns import batches_of, schema_with
from quiver.client.reader.message_rows import messages_of
from quiver.client.reader.range import LATEST, Mark, Position, mark_of
from quiver.client.reader.read_ahead import Chunk, ReadAhead, Span
from quiver.client.transport.cluster import Cluster, TopicLayout, expect
from quiver.errors import InvalidRequest, PartitionNotFound
from quiver.model.clock import Clock
from quiver.model.message import Message
from quiver.model.transaction import COMMITTED_ONLY, require_isolation
from quiver.protocol import OffsetFound


class ReadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to read. Without ``end`` and ``follow``, up to the present end of the topic."""

    topic: str
    partition: int | None = None
    start: Position = "earliest"
    end: Position | None = None
    follow: bool = False
    columns: Sequence[str] | None = None
    zone: str | None = None
    """Replicas in this zone may be read from."""
    isolation: str = COMMITTED_ONLY
    """``uncommitted``: with messages of transactions that are open, or were aborted."""

    def check(self) -> None:
        mark_of(self.start, 0)
        if self.end is not None:
            mark_of(self.end, 0)
        if self.follow and self.end is not None and not isinstance(self.end, int):
            raise InvalidRequest("a reader that follows needs an offset as its end, or no end")
        if self.partition is not None and not is_partition(self.partition):
            raise InvalidRequest(f"partition must be 0 or more, not {self.partition!r}")
        schema_with(self.columns)
        require_isolation(self.isolation)


class AsyncReader:
    """An async iterator of record batches. Use it in an ``async with`` block, or call ``close``."""

    def __init__(self, cluster: Cluster, request: ReadRequest, clock: Clock) -> None:
        request.check()
        self.topic = request.topic
        self.schema = schema_with(request.columns)
        """The schema of every batch."""
        self._cluster = cluster
        self._request = request
        self._clock = clock
        self._opening = asyncio.Lock()
        self._ahead: ReadAhead | None = None
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._closed = False

    async def next_chunk(self) -> Chunk | None:
        """The next stored entries, as they are; ``None`` at the end."""
        ahead = self._ahead or await self._open()
        return await ahead.next_chunk()

    async def bounds(self) -> dict[int, tuple[int, int | None]]:
        """Return the first and the end offset (exclusive) of each partition, as of now."""
        spans = await self._spans(await self._cluster.refresh(self.topic))
        return {partition: (span.offset, span.end) for partition, span in spans.items()}

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        while True:
            for batch in self._batches:
                return batch
            chunk = await self.next_chunk()
            if chunk is None:
                raise StopAsyncIteration
            self._batches = batches_of(chunk, self.schema)

    async def messages(self) -> AsyncIterator[Message]:
        """Iterate over the messages one by one."""
        while True:
            chunk = await self.next_chunk()
            if chunk is None:
                return
            for message in messages_of(chunk):
                yield message

    async def table(self) -> pa.Table:
        """Return everything up to the end as one table in memory."""
        return pa.Table.from_batches([batch async for batch in self], schema=self.schema)

    async def close(self) -> None:
        """Stop reading. Fetched messages that were not read are dropped."""
        async with self._opening:
            self._closed = True
        if self._ahead is not None:
            await self._ahead.close()

    # ------------------------------------------------------------------ where to read

    async def _open(self) -> ReadAhead:
        async with self._opening:
            if self._closed:
                raise InvalidRequest("the reader is closed")
            if self._ahead is None:
                layout = await self._cluster.refresh(self.topic)
                self._ahead = ReadAhead(
                    self._cluster,
                    layout.info,
                    await self._spans(layout),
                    follow=self._request.follow,
                    grows=self._request.follow and self._request.partition is None,
                    clock=self._clock,
                    zone=self._request.zone,
                    isolation=self._request.isolation,
                )
            return self._ahead

    async def _spans(self, layout: TopicLayout) -> dict[int, Span]:
        """The range of each partition, as it is now."""
        request, now_us = self._request, self._clock.time_us()
        partitions = layout.partitions if request.partition is None else [request.partition]
        if not set(partitions) <= set(layout.partitions):
            raise PartitionNotFound(
                f"topic {self.topic!r} has partitions {layout.partitions[0]} to "
                f"{layout.partitions[-1]}, not {request.partition}",
                topic=self.topic,
                partition=request.partition,
            )
        start = mark_of(request.start, now_us)
        end = None if request.end is None else mark_of(request.end, now_us)
        spans = [self._span(layout, partition, start, end) for partition in partitions]
        return dict(zip(partitions, await asyncio.gather(*spans), strict=True))

    async def _span(
        self, layout: TopicLayout, partition: int, start: Mark, end: Mark | None
    ) -> Span:
        begin = await self._offset(layout, partition, start)
        if self._request.follow:
            return Span(begin, None if end is None else end.offset)
        latest = await self._offset(layout, partition, LATEST)
        limit = latest if end is None else await self._offset(layout, partition, end)
        if begin > latest:
            # The node says best what is wrong with an offset that is not there.
            return Span(begin, begin + 1)
        return Span(begin, min(limit, latest))

    async def _offset(self, layout: TopicLayout, partition: int, mark: Mark) -> int:
        if mark.offset is not None:
            return mark.offset
        _, (reply, _) = await self._cluster.call(
            mark.question(self.topic, partition, self._request.isolation),
            repeatable=True,
            find_address=lambda: (self._cluster.known_layout(self.topic) or layout).address(
                partition
            ),
            about=self.topic,
        )
        return expect(OffsetFound, reply).offset

    # ------------------------------------------------------------------ with

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        # The tasks that fetch do not hold the reader: when nobody does, they have no purpose.
        ahead = getattr(self, "_ahead", None)
        if ahead is not None and not self._closed:
            ahead.abandon()
