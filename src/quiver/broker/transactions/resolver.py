"""Asks what became of transactions that have been open in a partition of this node for a while.

Each second at most, one call for each coordinator; more rarely where very many partitions are open. So a
partition hears of the end of every transaction, also if its coordinator was never told that the
partition takes part. Transactions of another cluster end there: in a mirrored topic they stay open until
that is copied. Once it is promoted they are aborted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from quiver.aio import TaskSet
from quiver.broker.partition.partition import Partition
from quiver.broker.partition.partitions import Partitions, Place
from quiver.broker.topics.catalog import TopicCatalog
from quiver.broker.transactions.outcome_sender import Outcomes
from quiver.broker.transactions.participants import close_in, open_in
from quiver.errors import QuiverError
from quiver.model.clock import Clock
from quiver.model.envelope import is_copied
from quiver.model.ids import Microseconds
from quiver.model.transaction import TransactionId, TransactionState, producer_of

OPEN_US = 1_000_000
"""After this long a partition asks for a transaction."""
_ASKED_MAX = 10_000
"""How many transactions one call asks for."""
_SLICE = 500
"""After so many partitions others have their turn."""
_TIME_SHARE_MAX = 0.005
_PAUSE_S_MAX = 10.0
"""Looking at very many partitions takes a small share of the time, and happens at least this often."""

logger = structlog.get_logger()

Found = list[tuple[Partition, set[TransactionId]]]
Resolve = Callable[[list[TransactionId]], Awaitable[dict[TransactionId, TransactionState]]]


class TransactionResolver:
    """``resolve`` asks the coordinators, and gives what they have answered."""

    def __init__(
        self,
        topics: TopicCatalog,
        partitions: Partitions,
        resolve: Resolve,
        clock: Clock,
    ) -> None:
        self._topics = topics
        self._partitions = partitions
        self._resolve = resolve
        self._clock = clock
        self._asking = TaskSet()
        self._next_look = 0.0

    def tick(self) -> None:
        """Each second. One round at a time, and no task where there is nothing to ask."""
        if self._asking or self._clock.monotonic() < self._next_look:
            return
        partitions = self._partitions.opened()
        if len(partitions) > _SLICE:
            self._asking.start(self._look_and_ask(partitions))
        elif found := self._look(partitions):
            self._asking.start(self._ask(found))

    async def close(self) -> None:
        await self._asking.cancel()

    def _look(self, partitions: list[tuple[Place, Partition]]) -> Found:
        """What has been open for a while."""
        before = Microseconds(self._clock.time_us() - OPEN_US)
        found = []
        for (number, _), partition in partitions:
            transactions = open_in(partition, before)
            if transactions and self._is_mirrored(number):
                transactions = {one for one in transactions if not _is_copied(one)}
            if transactions:
                found.append((partition, transactions))
        return found

    def _is_mirrored(self, number: int) -> bool:
        record = self._topics.numbered(number)
        return record is not None and record.origin is not None

    async def _look_and_ask(self, partitions: list[tuple[Place, Partition]]) -> None:
        found: Found = []
        began = self._clock.monotonic()
        for begin in range(0, len(partitions), _SLICE):
            found += self._look(partitions[begin : begin + _SLICE])
            await asyncio.sleep(0)
        now = self._clock.monotonic()
        self._next_look = now + min(_PAUSE_S_MAX, (now - began) / _TIME_SHARE_MAX)
        if found:
            await self._ask(found)

    async def _ask(self, found: Found) -> None:
        every = set().union(*(transactions for _, transactions in found))
        wanted = sorted(one for one in every if not _is_copied(one))[:_ASKED_MAX]
        states = await self._resolve(wanted) if wanted else {}
        states |= {one: TransactionState.ABORTED for one in every if _is_copied(one)}
        outcomes = {
            transaction: state is TransactionState.COMMITTED
            for transaction, state in states.items()
            if state in (TransactionState.COMMITTED, TransactionState.ABORTED)
        }
        for partition, transactions in found:
            decided = {one: outcomes[one] for one in transactions if one in outcomes}
            if decided:
                await self._close(partition, decided)

    async def _close(self, partition: Partition, outcomes: Outcomes) -> None:
        try:
            await close_in(partition, outcomes)
        except QuiverError as error:  # it is asked for again
            logger.debug(
                "transactions could not be ended in a partition",
                folder=partition.folder,
                error=error.message,
            )


def _is_copied(transaction: TransactionId) -> bool:
    """Whether another cluster decides about it."""
    return is_copied(producer_of(transaction)[0])
