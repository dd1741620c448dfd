"""What a sink has decided: for each batch, once and for good, which staged entries are published.

Decisions are messages of a small topic of the sink's own. The first of a batch is the one that
holds, so that a driver that was believed dead cannot decide differently. Each also says which
sequences its entries get in their partitions: publishing them again, by whomever, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from quiver.client import AsyncClient, Client
from quiver.client.transport.cluster import expect
from quiver.errors import TopicNotFound
from quiver.model.topic import Retention
from quiver.protocol import OpenProducer, ProducerOpened
from quiver.spark.write.staging import MESSAGE_BYTES_MAX, StagedEntry

_TAIL = 64
"""Decisions that are looked at; of one batch there are as many as drivers that tried."""


class Target(msgspec.Struct, frozen=True, array_like=True):
    """A partition that is published to, and the sequence of the sink's next message there."""

    topic: str
    partition: int
    sequence: int


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    batch: int
    producer_id: int
    staging_number: int | None
    """``None`` if there is nothing to publish."""
    entries: list[StagedEntry]
    targets: list[Target]
    """Every partition that the sink has ever published to, as it is before this batch."""

    def next_targets(self) -> dict[tuple[str, int], int]:
        """The sequences after this batch."""
        sequences = {(one.topic, one.partition): one.sequence for one in self.targets}
        for entry in self.entries:
            place = entry.topic, entry.partition
            sequences[place] = sequences.get(place, 0) + entry.count
        return sequences


class Decisions:
    """The decisions of one sink."""

    def __init__(self, client: Client, sink: str) -> None:
        self._client = client
        self._sink = sink

    def last(self) -> Decision | None:
        """The decision of the newest batch."""
        return max(self._tail(), key=lambda one: one.batch, default=None)

    def decide(self, batch: int, number: int | None, entries: list[StagedEntry]) -> Decision:
        """Publish these entries as this batch, unless that was decided already: what holds."""
        self._client.create_topic(
            self._sink,
            retention=Retention(age=None, messages=10 * _TAIL),
            message_bytes_max=MESSAGE_BYTES_MAX,
            segment_bytes=1 << 20,
            exist_ok=True,
        )
        before = self.last()
        if before is not None and before.batch >= batch:
            return before
        sequences = {} if before is None else before.next_targets()
        for entry in entries:
            sequences.setdefault((entry.topic, entry.partition), 0)
        proposed = Decision(
            batch=batch,
            producer_id=self._new_producer() if before is None else before.producer_id,
            staging_number=number,
            entries=entries,
            targets=[Target(*place, sequence) for place, sequence in sequences.items()],
        )
        self._client.publish(self._sink, msgspec.json.encode(proposed))
        holds = self.last()
        assert holds is not None, "one was stored a moment ago"
        return holds

    def _tail(self) -> Iterable[Decision]:
        """The newest decisions that hold: each is of a later batch than any before it."""
        try:
            (partition,) = self._client.describe_topic(self._sink).partitions
        except TopicNotFound:
            return []
        next_offset, start = partition.next_offset or 0, partition.start_offset or 0
        begin = max(start, next_offset - _TAIL)
        if begin == next_offset:
            return []
        held: dict[int, Decision] = {}
        with self._client.read(self._sink, start=begin, end=next_offset) as reader:
            for message in reader.messages():
                one = msgspec.json.decode(message.payload, type=Decision)
                if one.batch > max(held, default=-1):
                    held[one.batch] = one
        return held.values()

    def _new_producer(self) -> int:
        async def opened(client: AsyncClient) -> int:
            _, (reply, _) = await client.cluster.call(OpenProducer(), repeatable=True)
            return expect(ProducerOpened, reply).producer_id

        return self._client.run(opened)
