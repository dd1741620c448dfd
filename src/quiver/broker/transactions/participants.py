"""Partitions that a transaction writes to or takes messages from, on this node or another."""

from __future__ import annotations

import asyncio
from typing import Any

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

    async def close(
        self, participant: Participant, outcomes: Outcomes
    ) -> asyncio.Future[Any] | None:
        """Tell a partition how transactions ended, durably. Readers see it on return.

        What is returned, if anything, is done when it is durable there.
        """
        record, index = self._topics.get(participant.topic), participant.partition
        if self._remote is None or self._partitions.placement.leads(record, index):
            return await show_in(await self._partitions.get(record, index), outcomes)
        await self._remote.close_transactions(participant.topic, index, outcomes)
        return None

    async def close_here(self, participant: Participant, outcomes: Outcomes) -> None:
        record = self._topics.get(participant.topic)
        await close_in(await self._partitions.get(record, participant.partition), outcomes)


async def show_in(partition: Partition, outcomes: Outcomes) -> asyncio.Future[Any] | None:
    """The same as ``close_in``, of transactions whose outcome is durable.

    What is returned, if anything, is done when it is durable in the partition. Nobody may cancel it.
    """
    if not partition.log.is_alone:
        await close_in(partition, outcomes)
        return None
    state = partition.state
    closing = None if state is None else state.close_transactions(outcomes, at_leisure=True)
    shown = await partition.show_transactions(outcomes)
    if closing is None:
        return shown
    return closing if shown is None else asyncio.gather(closing, shown)


async def close_in(partition: Partition, outcomes: Outcomes) -> None:
    """End transactions in a partition: what they have written, and what they have taken.

    Durable on return.
    """
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
