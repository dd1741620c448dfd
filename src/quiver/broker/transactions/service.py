"""Transactions, as the edge uses them: begun, joined, ended and described, and what partitions ask.

A call about a transaction runs on the node that coordinates it. ``coordinator_of`` says which that is.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from quiver.broker.partition.partition import Partition
from quiver.broker.partition.partitions import Partitions
from quiver.broker.partition.producer_ids import ProducerIds
from quiver.broker.remote.partition_router import RemoteBroker
from quiver.broker.topics.catalog import TopicCatalog, TopicRecord
from quiver.broker.topics.internal_topics import TRANSACTIONS
from quiver.broker.transactions.coordinator import Ended
from quiver.broker.transactions.coordinators import Coordinators
from quiver.broker.transactions.machine import Ending
from quiver.broker.transactions.outcome_sender import Outcomes
from quiver.broker.transactions.participants import Participants
from quiver.broker.transactions.resolver import TransactionResolver
from quiver.broker.transactions.shared import Part, SharedEnding
from quiver.broker.transactions.token import TransactionTokens
from quiver.errors import InvalidSetting, QuiverError, TransactionAborted, TransactionError
from quiver.model.clock import Clock
from quiver.model.envelope import is_copied
from quiver.model.ids import EVER, ProducerId
from quiver.model.transaction import TransactionId, TransactionState, producer_of
from quiver.protocol import Participant

_NAME = re.compile(r"[A-Za-z0-9_.:@/-]{1,200}")
_SEPARATOR = "|"
"""Neither names nor owners contain it."""
E = TypeVar("E", Ending, SharedEnding)


class TransactionService:
    def __init__(
        self,
        coordinators: Coordinators,
        participants: Participants,
        partitions: Partitions,
        producer_ids: ProducerIds,
        tokens: TransactionTokens,
        clock: Clock,
        remote: RemoteBroker | None,
        topics: TopicCatalog,
    ) -> None:
        self.tokens = tokens
        self.counts = coordinators.counts
        self._coordinators = coordinators
        self._participants = participants
        self._producer_ids = producer_ids
        self._remote = remote
        self._topics = topics
        self._resolver = TransactionResolver(topics, partitions, self._ask, clock)

    def tick(self) -> None:
        """Each second."""
        self._coordinators.tick()
        self._resolver.tick()

    @property
    def unfinished_count(self) -> int:
        """How many transactions are decided here and not known to all their partitions."""
        return self._coordinators.unfinished_count

    async def close(self) -> None:
        await self._resolver.close()
        await self._coordinators.close()

    # ------------------------------------------------------------------ on any node

    async def begin(
        self, name: str | None, *, owner: str, names_max: int, is_shared: bool = False
    ) -> ProducerId:
        """A producer of transactions. Under a name, whoever had it before is fenced by then.

        If they are parts of shared transactions, nobody is.
        """
        topic = await self._coordinators.topic()
        if name is None:
            return await self._producer_ids.fresh()
        stored = stored_name(name, owner, is_shared=is_shared)
        index = self._coordinators.index_of_name(topic, stored)
        if self._remote is None or await self._coordinators.address_of(index) is None:
            return await self.begin_here(stored, owner, names_max)
        return ProducerId(await self._remote.begin_transactions(index, stored, owner, names_max))

    async def coordinator_of(self, transaction: TransactionId) -> str | None:
        """The address of the node that coordinates a transaction; ``None``: this one."""
        index = await self._coordinators.index_of(transaction)
        return await self._coordinators.address_of(index)

    # ------------------------------------------------------------------ on the coordinator

    async def begin_here(self, name: str, owner: str, names_max: int) -> ProducerId:
        """``name`` is as it is stored."""
        topic = await self._coordinators.topic()
        index, count = self._coordinators.index_of_name(topic, name), len(topic.first_hashes)
        coordinator = await self._coordinators.at(index)
        producer = await self._producer_ids.fresh(count, index)
        share = -(-names_max // count)
        if is_shared_name(name):
            await coordinator.begin_shared(name, owner, producer, share)
        else:
            await coordinator.begin(name, owner, producer, share)
        return producer

    async def join(
        self, transaction: TransactionId, timeout_us: int, participants: list[Participant]
    ) -> None:
        coordinator = await self._coordinators.at(await self._coordinators.index_of(transaction))
        await coordinator.join(transaction, timeout_us, participants)

    async def join_shared(self, part: Part) -> bool:
        """Whether the shared transaction is committed already."""
        index = await self._coordinators.index_of(part.transaction)
        return await (await self._coordinators.at(index)).join_shared(part)

    async def end_shared(self, transaction: TransactionId, ending: SharedEnding) -> Ended:
        """``transaction`` is one that was begun under the name."""
        coordinator = await self._coordinators.at(await self._coordinators.index_of(transaction))
        return await self._end(ending, partial(coordinator.end_shared, transaction))

    async def end(self, ending: Ending) -> Ended:
        coordinator = self._coordinators.opened(ending.transaction)
        if coordinator is None:
            index = await self._coordinators.index_of(ending.transaction)
            coordinator = await self._coordinators.at(index)
        return await self._end(ending, coordinator.end)

    async def _end(self, ending: E, end: Callable[[E], Awaitable[Ended]]) -> Ended:
        """Commit or abort. What reached a topic that goes on in another cluster is committed no more.

        The copy there has it as aborted.
        """
        moved = self._moved(ending.participants) if ending.is_commit else None
        if moved is not None:
            try:
                await end(replace(ending, is_commit=False))
            except TransactionError:
                return await end(ending)  # it was committed before
            raise TransactionAborted(
                f"the transaction was aborted: topic {moved.name!r} was moved to {moved.moved_to}",
                topic=moved.name,
                moved_to=moved.moved_to,
            )
        return await end(ending)

    def _moved(self, participants: Iterable[Participant]) -> TopicRecord | None:
        """A topic among those of participants whose copy was promoted, if there is one."""
        for one in participants:
            if self._topics.registry.has(one.topic):
                record = self._topics.get(one.topic)
                if record.moved_to:
                    return record
        return None

    async def describe(self, transaction: TransactionId) -> TransactionState:
        coordinator = await self._coordinators.at(await self._coordinators.index_of(transaction))
        return await coordinator.describe(transaction)

    async def resolve(
        self, transactions: list[TransactionId]
    ) -> dict[TransactionId, TransactionState]:
        """What became of transactions that are coordinated here; all by one coordinator."""
        if not transactions:
            return {}
        index = await self._coordinators.index_of(transactions[0])
        return await (await self._coordinators.at(index)).resolve(transactions)

    # ------------------------------------------------------------------ on participants

    async def prepare(self, partition: Partition) -> None:
        """Before anybody gets a partition that this node keeps alone: end what is decided there.

        Readers may have seen it before a crash that took the markers away.
        """
        if not partition.log.is_alone or not self._topics.registry.has(TRANSACTIONS):
            return
        opened = partition.open_transactions_before(EVER)
        own = [one for one in opened if not is_copied(producer_of(one)[0])]
        decided = {
            one: state is TransactionState.COMMITTED
            for one, state in (await self.resolve(own)).items()
            if state is not TransactionState.OPEN
        }
        if decided:
            await partition.close_transactions(decided)

    async def close_here(self, participant: Participant, outcomes: Outcomes) -> None:
        await self._participants.close_here(participant, outcomes)

    async def _ask(
        self, transactions: list[TransactionId]
    ) -> dict[TransactionId, TransactionState]:
        """What the coordinators answer. Those that cannot be reached are asked again later."""
        try:
            topic = await self._coordinators.topic()
        except QuiverError:
            return {}
        by_index: dict[int, list[TransactionId]] = {}
        for transaction in transactions:
            index = self._coordinators.index_of_producer(topic, producer_of(transaction)[0])
            by_index.setdefault(index, []).append(transaction)
        answers = await asyncio.gather(
            *(self._ask_one(index, asked) for index, asked in by_index.items())
        )
        return {one: state for answer in answers for one, state in answer.items()}

    async def _ask_one(
        self, index: int, transactions: list[TransactionId]
    ) -> dict[TransactionId, TransactionState]:
        try:
            if self._remote is None or await self._coordinators.address_of(index) is None:
                return await self.resolve(transactions)
            return await self._remote.resolve_transactions(index, transactions)
        except QuiverError:
            return {}


def stored_name(name: str, owner: str, *, is_shared: bool = False) -> str:
    """A name as it is stored: with its owner. Those of shared transactions are names of their own."""
    if not _NAME.fullmatch(name):
        raise InvalidSetting(
            f"{name[:80]!r} is not a name for transactions; "
            "use 1 to 200 letters, digits, '.', '_', ':', '@', '/' or '-'"
        )
    return f"{owner}{_SEPARATOR}{name}" + (_SEPARATOR if is_shared else "")


def is_shared_name(stored: str) -> bool:
    return stored.endswith(_SEPARATOR)
