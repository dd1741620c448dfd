"""The coordinators of this node: one for each partition of ``__transactions`` that it leads.

Each is opened when it is first needed, and at the latest a second after this node has begun to lead:
there may be participants to tell.
"""

from __future__ import annotations

import structlog

from quiver.aio import SingleFlight, TaskSet
from quiver.broker.definitions.topics import Topics
from quiver.broker.partition.partitions import Partitions
from quiver.broker.topics.catalog import TopicCatalog, TopicRecord
from quiver.broker.topics.internal_topics import TRANSACTIONS
from quiver.broker.transactions.coordinator import (
    TransactionCoordinator,
    TransactionCounts,
)
from quiver.broker.transactions.outcome_sender import Close
from quiver.errors import QuiverError, ShuttingDown
from quiver.model.clock import Clock
from quiver.model.ids import ProducerId
from quiver.model.key_hash import key_hash
from quiver.model.transaction import TransactionId, producer_of

PARTITIONS_OF_A_CLUSTER = 8

logger = structlog.get_logger()


class Coordinators:
    def __init__(
        self,
        topics: Topics,
        catalog: TopicCatalog,
        partitions: Partitions,
        close: Close,
        clock: Clock,
        *,
        is_cluster: bool,
    ) -> None:
        self._topics = topics
        self._catalog = catalog
        self._partitions = partitions
        self._close = close
        self._clock = clock
        self._count = PARTITIONS_OF_A_CLUSTER if is_cluster else 1
        self.counts = TransactionCounts()
        self._open: dict[int, TransactionCoordinator] = {}
        self._opening: SingleFlight[int, TransactionCoordinator] = SingleFlight()
        self._tending = TaskSet()
        self._is_closed = False

    # ------------------------------------------------------------------ who coordinates what

    async def topic(self) -> TopicRecord:
        """``__transactions``, made if need be."""
        if self._catalog.registry.has(TRANSACTIONS):
            return self._catalog.get(TRANSACTIONS)
        return await self._topics.internal(TRANSACTIONS, partitions=self._count)

    async def index_of(self, transaction: TransactionId) -> int:
        """The partition whose leader coordinates a transaction."""
        return self.index_of_producer(await self.topic(), producer_of(transaction)[0])

    @staticmethod
    def index_of_producer(topic: TopicRecord, producer: ProducerId) -> int:
        return producer % len(topic.first_hashes)

    @staticmethod
    def index_of_name(topic: TopicRecord, name: str) -> int:
        return key_hash(name.encode()) % len(topic.first_hashes)

    async def address_of(self, index: int) -> str | None:
        """The node that leads a partition of ``__transactions``; ``None``: this one."""
        return self._topics.leader_of((await self.topic()).name, index)

    # ------------------------------------------------------------------ those of this node

    def opened(self, transaction: TransactionId) -> TransactionCoordinator | None:
        """The coordinator of a transaction, if it is open on this node."""
        if self._is_closed or not self._catalog.registry.has(TRANSACTIONS):
            return None
        topic = self._catalog.get(TRANSACTIONS)
        return self._opened(topic, self.index_of_producer(topic, producer_of(transaction)[0]))

    def _opened(self, topic: TopicRecord, index: int) -> TransactionCoordinator | None:
        partition, known = self._partitions.ready(topic, index), self._open.get(index)
        is_open = known is not None and partition is not None and known.serves(partition)
        return known if is_open else None

    async def at(self, index: int) -> TransactionCoordinator:
        """The coordinator of a partition; ``NotLeader`` if another node has it."""
        if self._is_closed:
            raise ShuttingDown()
        topic = await self.topic()
        known = self._opened(topic, index)
        if known is not None:
            return known
        return await self._opening.run(index, lambda: self._reopen(topic, index))

    async def _reopen(self, topic: TopicRecord, index: int) -> TransactionCoordinator:
        known = self._open.pop(index, None)
        if known is not None:
            await known.close()
        partition = await self._partitions.get(topic, index)
        partition.log.require_current()
        opened = await TransactionCoordinator.open(partition, self._close, self.counts, self._clock)
        if self._is_closed:
            await opened.close()
            raise ShuttingDown()
        self._open[index] = opened
        return opened

    def tick(self) -> None:
        """Each second: open what this node leads, and let each see what has taken too long."""
        for coordinator in self._open.values():
            coordinator.tick()
        if self._catalog.registry.has(TRANSACTIONS) and not self._tending:
            self._tending.start(self._tend())

    async def _tend(self) -> None:
        topic = self._catalog.get(TRANSACTIONS)
        led = self._partitions.led(topic)
        for index in [index for index in self._open if index not in led]:
            await self._open.pop(index).close()
        for index in led:
            try:
                await self.at(index)
            except QuiverError as error:
                logger.debug("a coordinator is not open yet", partition=index, error=error.message)

    async def close(self) -> None:
        self._is_closed = True
        await self._tending.cancel()
        await self._opening.wait(*self._opening)
        for coordinator in self._open.values():
            await coordinator.close()

    @property
    def unfinished_count(self) -> int:
        return sum(one.unfinished_count for one in self._open.values())
