"""Partitions that a transaction writes to or takes messages from, on this node or another."""

from __future__ import annotations

import asyncio

from quiver.broker.partition.partition import Partition
from quiver.broker.partition.partitions import Partitions
from quiver.broker.remote.partition_router import RemoteBroker
from quiver.broker.topics.catalog import TopicCatalog
from quiver.broker.transactions.outcome_sender import Outcomes
from quiver.model.ids import Microseconds
from quiver.model.transaction import TransactionId
from quiver.protocol import Participant


class Participants:
    def __init__(
        self, topics: TopicCatalog, partitions: Partitions, remote: RemoteBroker | None
    ) -> None:
        self._topics = topics
        self._partitions = partitions
        self._remote = remote

    async def close(self, participant: Participant, outcomes: Outcomes) -> None:
        """Tell a partition how transactions ended; returns when that is durable there."""
        record, index = self._topics.get(participant.topic), participant.partition
        if self._remote is None or self._partitions.placement.leads(record, index):
            await self.close_here(participant, outcomes)
        else:
            await self._remote.close_transactions(participant.topic, index, outcomes)

    async def close_here(self, participant: Participant, outcomes: Outcomes) -> None:
        record = self._topics.get(participant.topic)
        await close_in(await self._partitions.get(record, participant.partition), outcomes)


async def close_in(partition: Partition, outcomes: Outcomes) -> None:
    """End transactions in a partition: what they have written, and what they have taken."""
    closing = None if partition.state is None else partition.state.close_transactions(outcomes)
    await partition.close_transactions(outcomes)
    if closing is not None:
        await asyncio.shield(closing)


def open_in(partition: Partition, before_us: Microseconds) -> set[TransactionId]:
    """The transactions that have been open in a partition since before this time."""
    found = set(partition.open_transactions_before(before_us))
    if partition.state is not None:
        found |= partition.state.held_transactions(before_us)
    return found
