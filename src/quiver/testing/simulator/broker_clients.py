"""Clients of simulated nodes with real brokers: they speak the native protocol's requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from quiver import protocol
from quiver.cluster.records import NodeId, PartitionId
from quiver.errors import NotLeader
from quiver.model.batch import StoredBatch
from quiver.model.builder import BatchBuilder
from quiver.model.envelope import UNSTAMPED, ProducerStamp, entries_in
from quiver.model.ids import ProducerEpoch, ProducerId, Sequence
from quiver.testing.simulator.clients import BY_ID, Client
from quiver.testing.simulator.messages import Answer, Ask, Found, Stored
from quiver.testing.simulator.peers import asked

_KEYS = 3
_POISON = 13
_READ_BYTES = 16 << 10


def place_of(partition: PartitionId) -> tuple[str, int]:
    """Topic and index; clients know partitions as ``topic/index``."""
    topic, _, index = partition.rpartition("/")
    return topic, int(index)


def key_of(value: str) -> str:
    """The key that a value is published with: a few for each producer."""
    producer, _, number = value.partition(".")
    return f"{producer}-{int(number) % _KEYS}"


def is_poison(value: str) -> bool:
    """Whether no consumer can do anything with it."""
    return int(value.partition(".")[2]) % _POISON == _POISON - 1


class BrokerClient(Client):
    async def ask(self, node: NodeId, request: Any, timeout_s: float = 1.5) -> Answer:
        ask = request if isinstance(request, Ask) else Ask(request)
        return await asked(self._network, self.name, node, ask, timeout_s)

    async def ask_any(self, request: protocol.AnyRequest, timeout_s: float = 1.5) -> Answer:
        return await self.ask(self.rng.choice(self._nodes), request, timeout_s)

    async def publish(
        self,
        partition: PartitionId,
        producer: int,
        sequence: int,
        values: tuple[str, ...],
        layout: int = 0,
    ) -> Stored:
        topic, index = place_of(partition)
        stamp = ProducerStamp(ProducerId(producer), ProducerEpoch(0), Sequence(sequence))
        builder, by_id = BatchBuilder(), values[0].startswith(BY_ID)
        for value in values:
            dedup_id = value if by_id else None
            builder.add(value.encode(), key_of(value).encode(), dedup_id=dedup_id)
        batch = builder.build(stamp=UNSTAMPED if by_id else stamp)
        publish = protocol.Publish(topic=topic, partition=index, layout=layout)
        request = Ask(publish, batch.head + bytes(batch.body))
        answer: Answer = await self.ask_leader(partition, request)
        published = answer.reply
        assert isinstance(published, protocol.Published)
        repeats = {row: repeat.offset for row, repeat in published.repeats.items()}
        return Stored(published.base_offset, answer.epoch, repeats)

    async def read(self, partition: PartitionId, offset: int) -> Found:
        topic, index = place_of(partition)
        request = protocol.Fetch(topic=topic, partition=index, offset=offset, bytes_max=_READ_BYTES)
        answer: Answer = await self.ask_leader(partition, Ask(request))
        assert isinstance(answer.reply, protocol.Fetched)
        values = tuple(
            (place, value) for entry in entries_in(answer.body) for place, value in values_of(entry)
        )
        return Found(
            epoch=answer.epoch,
            watermark=answer.reply.next_offset,
            values=values,
            read_to=answer.reply.read_to,
        )

    async def topic(self, name: str) -> protocol.TopicInfo:
        """A topic as some node knows it."""
        answer = await self.ask_any(protocol.DescribeTopic(name=name, extents=False))
        assert isinstance(answer.reply, protocol.Topic)
        return answer.reply.topic

    async def split(self, partition: PartitionId, layout: int) -> None:
        """Have a partition give half of its keys to a new one."""
        topic, index = place_of(partition)
        request = protocol.SplitPartition(topic=topic, partition=index, layout=layout)
        await self.ask_leader(partition, Ask(request))

    async def _find_leader(self, partition: PartitionId) -> NodeId:
        topic, index = place_of(partition)
        known = (await self.topic(topic)).partitions
        leader = known[index].leader if index < len(known) else None
        if leader is None:
            raise NotLeader(f"nobody leads {partition} now")
        self._leaders[partition] = NodeId(leader)
        return self._leaders[partition]


def values_of(entry: StoredBatch) -> Iterator[tuple[int, str]]:
    """Offsets and values of an entry."""
    for place, payload in enumerate(entry.record_batch().column("payload").to_pylist()):
        yield entry.base_offset + place, payload.decode(errors="replace")
