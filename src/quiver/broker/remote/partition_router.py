"""Reaches a partition wherever it is led: on this node, or through the node that leads it.

The broker needs this for what it stores itself (dead letters, redriven messages, alerts) and for the
offsets at which a new subscription starts.
"""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from quiver.broker.partition.partitions import Partitions
from quiver.broker.partition.producer_ids import ProducerIdentity
from quiver.broker.topics.catalog import TopicRecord
from quiver.errors import NotLeader
from quiver.model.batch import UnstoredBatch
from quiver.model.builder import encode_record_batch
from quiver.model.ids import Microseconds, Offset, ProducerId
from quiver.model.layout import Split
from quiver.model.transaction import TransactionId, TransactionState
from quiver.protocol import PartitionInfo


class RemoteBroker(Protocol):
    """The other nodes. Each call finds the partition's leader, and tries again while it moves."""

    async def store(self, topic: str, index: int, batch: UnstoredBatch) -> None:
        """Store a batch, durably."""

    async def restore(self, topic: str, index: int, data: bytes) -> Offset:
        """Store entries at their own offsets in a topic that is being restored; the next offset."""

    async def find_offset(
        self, topic: str, index: int, *, at: str | None = None, time_us: int | None = None
    ) -> Offset:
        """The start or the end of a partition, or the first message at or after a time."""

    async def last_sequence(self, topic: str, index: int, identity: ProducerIdentity) -> int | None:
        """A producer's last own sequence there; whoever had its name before is fenced."""

    async def handover(self, topic: str, index: int, offset: int) -> bytes:
        """What a partition hands down to the one that was split off at an offset."""

    async def has_passed(self, subscription: str, topic: str, index: int, offset: int) -> bool:
        """Whether a subscription is done with everything before an offset of a partition."""

    async def extents(self, topic: str) -> list[PartitionInfo]:
        """What others know of their partitions of a topic; of those that do not answer, nothing."""

    async def begin_transactions(
        self, index: int, name: str, owner: str, names_max: int
    ) -> ProducerId:
        """Begin under a name that a partition of ``__transactions`` has; the producer."""

    async def resolve_transactions(
        self, index: int, transactions: list[TransactionId]
    ) -> dict[TransactionId, TransactionState]:
        """Ask a coordinator once what became of transactions."""

    async def close_transactions(
        self, topic: str, index: int, outcomes: dict[TransactionId, bool]
    ) -> None:
        """Tell a partition once how transactions ended; returns when that is durable there."""

    def release(self, addresses: list[str], subscription: str, consumer: str) -> None:
        """Tell these nodes that a consumer is gone, without waiting for it."""

    async def spread(self, revision: int) -> None:
        """Return when the others know what is in the metadata store, or do not answer in time."""


class PartitionRouter:
    def __init__(self, partitions: Partitions, remote: RemoteBroker | None) -> None:
        self._partitions = partitions
        self._remote = remote

    def _is_remote(self, record: TopicRecord, index: int) -> bool:
        return self._remote is not None and not self._partitions.placement.leads(record, index)

    async def store(self, record: TopicRecord, index: int, rows: pa.RecordBatch) -> None:
        """Store messages, durably; those with an id that is there already are not stored again."""
        record.require_writable()
        batch = encode_record_batch(rows)
        if not self._is_remote(record, index):
            try:
                partition = await self._partitions.get(record, index)
                await partition.log.wait_for_room()
                await partition.publish(batch, rows)
                return
            except NotLeader:
                if self._remote is None:
                    raise
        assert self._remote is not None
        await self._remote.store(record.name, index, batch)

    async def start(
        self, record: TopicRecord, index: int, time_us: int | None, offset: int | None
    ) -> tuple[Offset, Offset, Offset]:
        """Where a partition begins, where it ends, and where the first message of a time is."""
        if self._is_remote(record, index):
            assert self._remote is not None
            ask, name = self._remote.find_offset, record.name
            end = await ask(name, index, at="latest")
            first = Offset(0) if offset is None else await ask(name, index, at="earliest")
            return first, end, end if time_us is None else await ask(name, index, time_us=time_us)
        log = (await self._partitions.get(record, index)).committed
        at = log.next_offset
        if time_us is not None:
            at = await log.offset_at(Microseconds(time_us))
        return log.start_offset, log.next_offset, at

    async def last_sequence(
        self, record: TopicRecord, index: int, identity: ProducerIdentity
    ) -> int | None:
        if self._is_remote(record, index):
            assert self._remote is not None
            return await self._remote.last_sequence(record.name, index, identity)
        partition = await self._partitions.get(record, index)
        return await partition.last_user_sequence(identity.producer_id)

    async def handover(self, record: TopicRecord, split: Split) -> bytes:
        """What the parent of a split hands down to the child."""
        if self._is_remote(record, split.parent):
            assert self._remote is not None
            return await self._remote.handover(record.name, split.parent, split.offset)
        return await (await self._partitions.get(record, split.parent)).handover(split.offset)

    async def has_passed(self, subscription: str, record: TopicRecord, split: Split) -> bool | None:
        """Whether a subscription is done with the parent of a split; ``None``: this node knows."""
        if not self._is_remote(record, split.parent):
            return None
        assert self._remote is not None
        return await self._remote.has_passed(subscription, record.name, split.parent, split.offset)

    def release(self, addresses: list[str], subscription: str, consumer: str) -> None:
        """Let a consumer that is gone hold nothing on these nodes any more."""
        if self._remote is not None and addresses:
            self._remote.release(addresses, subscription, consumer)
