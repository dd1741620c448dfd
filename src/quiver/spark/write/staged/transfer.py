"""Transfers staged entries to a partition: read, stamp, publish.

A few batches are in flight at a time and are acknowledged in order. After a temporary failure all
unacknowledged batches are sent again, and the partition detects duplicates.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque

import msgspec

from quiver.aio import failed_future, retrieve_exception
from quiver.client import AsyncClient
from quiver.client.transport.backoff import RetryBackoff
from quiver.client.transport.channel import Answer
from quiver.client.transport.cluster import Cluster
from quiver.errors import ProducerError, QuiverError, SequenceGap
from quiver.model.batch import UnstoredBatch
from quiver.model.envelope import ProducerStamp, seal_batch
from quiver.model.ids import ProducerEpoch, ProducerId, Sequence
from quiver.protocol import Publish
from quiver.spark.write.staged.decisions import StagedEntry

_IN_FLIGHT_MAX = 4
"""Batches of one partition sent and unanswered; fewer than a partition recognises again."""


class Piece(msgspec.Struct, frozen=True):
    """Entries of one staging partition that follow each other in the partition they are for."""

    topic: str
    partition: int
    staging_partition: int
    sequence: int
    """Of the first message."""
    entries: list[StagedEntry]


def forgotten(topic: str, partition: int, gap: SequenceGap) -> ProducerError:
    """What a user is told when a partition expects other sequences than the decisions say."""
    return ProducerError(
        f"partition {partition} of topic {topic!r} does not remember this query: "
        "the topic was created again, or had too many producers since; start the query with a "
        f"new checkpoint ({gap.message})"
    )


class _Sent(msgspec.Struct):
    batch: UnstoredBatch
    answer: asyncio.Future[Answer]


class Transfer:
    """The way to one partition."""

    def __init__(self, cluster: Cluster, topic: str, partition: int, producer_id: int) -> None:
        self._cluster = cluster
        self._topic = topic
        self._partition = partition
        self._producer_id = ProducerId(producer_id)
        self._sent: deque[_Sent] = deque()
        self._backoff, self._chance = RetryBackoff(), random.Random()

    async def carry(self, client: AsyncClient, staging: str, piece: Piece) -> None:
        """Returns once the whole piece is acknowledged."""
        wanted = {entry.offset for entry in piece.entries}
        last, sequence = piece.entries[-1], piece.sequence
        try:
            async with client.read(
                staging,
                partition=piece.staging_partition,
                start=piece.entries[0].offset,
                end=last.offset + last.count,
            ) as reader:
                while (chunk := await reader.next_chunk()) is not None:
                    for stored in chunk.entries:
                        if stored.base_offset in wanted:
                            stamp = ProducerStamp(
                                self._producer_id, ProducerEpoch(0), Sequence(sequence)
                            )
                            sequence += stored.count
                            await self._send(
                                seal_batch(stored.body, stored.count, stored.columns, stamp)
                            )
            while self._sent:
                await self._settle_first()
        finally:
            self._abandon()

    async def _send(self, batch: UnstoredBatch) -> None:
        while len(self._sent) >= _IN_FLIGHT_MAX:
            await self._settle_first()
        self._sent.append(_Sent(batch, await self._start(batch)))

    def _abandon(self) -> None:
        for sent in self._sent:
            sent.answer.add_done_callback(retrieve_exception)
        self._sent.clear()

    async def _settle_first(self) -> None:
        failures, deadline = 0, time.monotonic() + self._cluster.timeout_s
        while True:
            try:
                await self._sent[0].answer
            except QuiverError as error:
                if isinstance(error, SequenceGap):
                    raise forgotten(self._topic, self._partition, error) from error
                if not error.retryable or time.monotonic() >= deadline:
                    raise
                failures += 1
                await asyncio.sleep(self._backoff.pause_s(failures, self._chance))
                await self._send_again()
            else:
                self._sent.popleft()
                return

    async def _send_again(self) -> None:
        """Send all that is not acknowledged once more, in order, when nothing is under way."""
        await asyncio.wait([sent.answer for sent in self._sent])
        self._cluster.forget(self._topic)
        for sent in self._sent:
            retrieve_exception(sent.answer)  # it goes again
            sent.answer = await self._start(sent.batch)

    async def _start(self, batch: UnstoredBatch) -> asyncio.Future[Answer]:
        request = Publish(topic=self._topic, partition=self._partition)
        try:
            layout = await self._cluster.layout(self._topic)
            channel = await self._cluster.pool.channel(layout.address(self._partition))
            await channel.drain()
            return channel.start(request, (batch.head, batch.body))
        except QuiverError as error:
            return failed_future(error)
