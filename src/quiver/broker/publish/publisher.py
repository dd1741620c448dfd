"""Publishing: batches are checked, admitted and stored in their partition.

``offer`` looks at a batch as far as that costs nothing, ``check`` at every value of it, and ``store``
takes its offset. A batch of little work is checked by ``store`` itself.
"""

from __future__ import annotations

import asyncio

import msgspec
import pyarrow as pa

from quiver.broker.definitions.changes import MetadataChanges
from quiver.broker.partition.partition import Partition
from quiver.broker.partition.partitions import Partitions
from quiver.broker.partition.producer_ids import NAMES_MAX, ProducerIdentity, ProducerIds
from quiver.broker.partition.producers.in_flight import Placed
from quiver.broker.partition.split import PartitionSplitter
from quiver.broker.publish.space import PublishSpace
from quiver.broker.remote.partition_router import PartitionRouter
from quiver.broker.topics.catalog import TopicCatalog, TopicRecord
from quiver.broker.topics.internal_topics import require_users_own
from quiver.errors import NotLeader, PartitionUnavailable, QuiverError
from quiver.log.disk.disk_threads import RunBlocking
from quiver.model.batch import Bytes, UnstoredBatch
from quiver.model.envelope import BATCH_BYTES_MAX, open_batch
from quiver.model.guard import (
    OpenedBatch,
    check_batch,
    check_message,
    open_message,
    require_clients_columns,
    require_few_ids,
)
from quiver.model.topic import Acks

LIGHT_BYTES = 256 << 10
"""A batch of no more work than this is checked where it stands: that takes well under 1 ms."""


class Offer(msgspec.Struct):
    """A batch that somebody wants stored; ``rows`` are there once its values are checked."""

    topic: str
    layout: int
    partition: int
    opened: OpenedBatch
    rows: pa.RecordBatch | None = None

    @property
    def is_light(self) -> bool:
        """Whether ``store`` may check it without anybody noticing; else ``check`` it first."""
        return self.rows is not None or self.opened.work <= LIGHT_BYTES


class Publisher:
    """``run_checks`` is for work that only takes a while."""

    def __init__(
        self,
        topics: TopicCatalog,
        partitions: Partitions,
        splitter: PartitionSplitter,
        producer_ids: ProducerIds,
        router: PartitionRouter,
        changes: MetadataChanges,
        space: PublishSpace,
        *,
        run_checks: RunBlocking,
    ) -> None:
        self._topics = topics
        self._partitions = partitions
        self._splitter = splitter
        self._producer_ids = producer_ids
        self._router = router
        self._changes = changes
        self._space = space
        self._run_checks = run_checks

    # ------------------------------------------------------------------ producers' batches

    def topic(self, name: str) -> TopicRecord:
        """How messages for a topic are routed, bounded and stored; ``TopicNotFound`` if there is none."""
        return self._topics.get(name)

    def ready_partition(self, topic: str, index: int) -> Partition | None:
        """The partition if a publish to it need not wait for anything first."""
        record = self._topics.get(topic)
        partition = self._partitions.ready(record, index)
        if partition is None or not partition.log.has_room:
            return None
        return partition if self._space.is_known(record, index, partition) else None

    async def partition(self, topic: str, index: int) -> Partition:
        """The partition, once it is open and has room for a publish."""
        record = self._topics.get(topic)
        try:
            partition = await self._partitions.get(record, index)
        except NotLeader:
            if self._partitions.placement.is_sole_holder(record, index):
                self._space.require_disk()  # a full disk is why nobody leads it
            raise
        await self._space.learn(record, index, partition)
        await partition.log.wait_for_room()
        return partition

    def offer(self, topic: str, data: Bytes, layout: int = 0, partition: int = 0) -> Offer:
        """Look at a producer's batch, as far as that costs nothing. ``check`` and ``store`` admit it.

        ``layout`` is the one by which it was routed to the partition; 0: that does not matter.
        """
        return self.offer_batch(topic, open_batch(data), layout, partition)

    def offer_batch(
        self, topic: str, batch: UnstoredBatch, layout: int = 0, partition: int = 0
    ) -> Offer:
        require_clients_columns(batch)
        require_few_ids(batch)
        return Offer(topic, layout, partition, open_message(batch))

    async def check(self, offer: Offer) -> None:
        """Check every value of a batch, off the event loop if there are many."""
        if not offer.is_light:
            limit = self._admit(offer).settings.message_bytes_max
            facts = await self._run_checks(lambda: check_message(offer.opened, limit))
            offer.rows = facts.rows

    def store(
        self, partition: Partition, offer: Offer, acks: Acks | None = None
    ) -> tuple[asyncio.Future[Placed], int]:
        """Store a batch; also the topic's number.

        The offset is taken when this returns; the future is done when the batch is acknowledged.
        """
        record = self._admit(offer)
        if offer.rows is None:
            limit = record.settings.message_bytes_max
            offer.rows = check_message(offer.opened, limit).rows
        batch, index = offer.opened.batch, offer.partition
        refusal: QuiverError | None = self._splitter.refusal(record, index, offer.layout)
        if record.settings.retention.refuses:
            refusal = refusal or self._space.refusal(record, index, batch.size())
        placed = partition.publish(batch, offer.rows, acks or record.settings.acks, refusal=refusal)
        if record.settings.retention.refuses:
            self._space.admitted(record, index, batch.size(), placed)
        return placed, record.number

    def _admit(self, offer: Offer) -> TopicRecord:
        """The topic, if it takes this batch now as far as can be said without its values."""
        record = self._topics.get(offer.topic)
        require_users_own(offer.topic)
        if record.is_restoring:
            raise PartitionUnavailable(
                f"topic {record.name!r} is being restored from a backup: publish when that is done"
            )
        record.require_writable()
        self._space.require_disk()
        self._producer_ids.require_current(offer.opened.batch)
        return record

    # ------------------------------------------------------------------ the nodes' own batches

    async def store_batch(self, topic: str, index: int, data: Bytes) -> None:
        """Store a batch that another node's broker has made."""
        batch = open_batch(data)
        self._topics.get(topic).require_writable()
        partition = await self.partition(topic, index)
        await partition.publish(batch, check_batch(batch, BATCH_BYTES_MAX).rows)

    # ------------------------------------------------------------------ producer sessions

    async def open_producer(
        self,
        name: str | None,
        topic: str | None,
        *,
        owner: str = "",
        names_max: int = NAMES_MAX,
    ) -> tuple[ProducerIdentity, dict[int, int]]:
        """A producer's identity and, for a named one, the last own sequence in each partition."""
        opening = self._producer_ids.open(name, owner=owner, names_max=names_max)
        identity = await self._changes.run(opening)
        sequences: dict[int, int] = {}
        if name is not None and topic is not None:
            record = self._topics.get(topic)
            for index in range(len(record.first_hashes)):
                last = await self._router.last_sequence(record, index, identity)
                if last is not None:
                    sequences[index] = last
        return identity, sequences

    async def last_sequence(self, topic: str, index: int, identity: ProducerIdentity) -> int | None:
        """The last own sequence of a producer that was opened on another node."""
        self._producer_ids.note(identity)
        partition = await self._partitions.get(self._topics.get(topic), index)
        return await partition.last_user_sequence(identity.producer_id)
