"""Publishes the staged entries of a decision: the same bytes, in the same order, exactly once.

Every message has its sequence by the decision, so the partition knows each again however often and
by whomever it is sent: to finish what another driver began is to publish it all once more.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from itertools import groupby

import msgspec

from quiver.client import AsyncClient
from quiver.client.backoff import Backoff
from quiver.client.channel import Answer
from quiver.client.cluster import Cluster
from quiver.errors import ProducerError, QuiverError, SequenceGap
from quiver.model.batch import StoredBatch, UnstoredBatch
from quiver.model.envelope import ProducerStamp, seal_batch
from quiver.model.ids import ProducerEpoch, ProducerId, Sequence
from quiver.model.wire import Publish
from quiver.spark.decisions import Decision
from quiver.spark.staging import StagedEntry

_IN_FLIGHT_MAX = 4
"""Batches of one partition sent and unanswered; fewer than a partition recognises again."""


async def publish_staged(client: AsyncClient, staging: str, decision: Decision) -> None:
    """Publish every entry of the decision; returns once all are acknowledged."""
    lanes = {
        (one.topic, one.partition): _Lane(client.cluster, one.topic, one.partition, one.sequence)
        for one in decision.targets
    }
    try:
        ordered = sorted(
            decision.entries, key=lambda entry: (entry.staging_partition, entry.offset)
        )
        for partition, group in groupby(ordered, key=lambda entry: entry.staging_partition):
            wanted = {entry.offset: entry for entry in group}
            await _publish_partition(client, staging, partition, wanted, lanes, decision)
        for lane in lanes.values():
            await lane.finish()
    finally:
        for lane in lanes.values():
            lane.abandon()


async def _publish_partition(
    client: AsyncClient,
    staging: str,
    partition: int,
    wanted: dict[int, StagedEntry],
    lanes: dict[tuple[str, int], _Lane],
    decision: Decision,
) -> None:
    last = max(wanted)
    async with client.read(
        staging, partition=partition, start=min(wanted), end=last + wanted[last].count
    ) as reader:
        while (chunk := await reader.next_chunk()) is not None:
            for stored in chunk.entries:
                entry = wanted.get(stored.base_offset)
                if entry is not None:
                    lane = lanes[entry.topic, entry.partition]
                    await lane.send(lane.stamped(stored, decision.producer_id))


class _Sent(msgspec.Struct):
    batch: UnstoredBatch
    answer: asyncio.Future[Answer]


class _Lane:
    """One partition that is published to: a few batches under way, acknowledged in order."""

    def __init__(self, cluster: Cluster, topic: str, partition: int, sequence: int) -> None:
        self._cluster = cluster
        self._topic = topic
        self._partition = partition
        self._sequence = sequence
        self._sent: deque[_Sent] = deque()
        self._backoff, self._chance = Backoff(), random.Random()

    def stamped(self, stored: StoredBatch, producer_id: int) -> UnstoredBatch:
        """The entry's bytes with the next sequences of this partition."""
        stamp = ProducerStamp(ProducerId(producer_id), ProducerEpoch(0), Sequence(self._sequence))
        self._sequence += stored.count
        return seal_batch(stored.body, stored.count, stored.columns, stamp)

    async def send(self, batch: UnstoredBatch) -> None:
        while len(self._sent) >= _IN_FLIGHT_MAX:
            await self._settle_first()
        self._sent.append(_Sent(batch, await self._start(batch)))

    async def finish(self) -> None:
        while self._sent:
            await self._settle_first()

    def abandon(self) -> None:
        for sent in self._sent:
            sent.answer.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _settle_first(self) -> None:
        failures, deadline = 0, time.monotonic() + self._cluster.timeout_s
        while True:
            try:
                await self._sent[0].answer
            except QuiverError as error:
                if isinstance(error, SequenceGap):
                    raise self._forgotten(error) from error
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
            sent.answer.cancelled() or sent.answer.exception()  # looked at: it goes again
            sent.answer = await self._start(sent.batch)

    async def _start(self, batch: UnstoredBatch) -> asyncio.Future[Answer]:
        request = Publish(topic=self._topic, partition=self._partition)
        try:
            layout = await self._cluster.layout(self._topic)
            channel = await self._cluster.pool.channel(layout.address(self._partition))
            await channel.drain()
            return channel.start(request, (batch.head, batch.body))
        except QuiverError as error:
            failed: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            failed.set_exception(error)
            return failed

    def _forgotten(self, gap: SequenceGap) -> ProducerError:
        return ProducerError(
            f"partition {self._partition} of topic {self._topic!r} does not remember this query: "
            "the topic was made anew, or has had too many producers since. Start the query with a "
            f"new checkpoint to go on ({gap.message})"
        )
