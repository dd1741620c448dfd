"""Asks what became of transactions that have been open in a partition of this node for a while.

Each second at most, one call for each coordinator. So a partition hears of the end of every transaction,
also if its coordinator was never told that the partition takes part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from quiver.aio import TaskSet
from quiver.broker.partition.partition import Partition
from quiver.broker.partition.partitions import Partitions
from quiver.broker.transactions.outcome_sender import Outcomes
from quiver.broker.transactions.participants import close_in, open_in
from quiver.errors import QuiverError
from quiver.model.clock import Clock
from quiver.model.ids import Microseconds
from quiver.model.transaction import TransactionId, TransactionState

OPEN_US = 1_000_000
"""After this long a partition asks for a transaction."""
_ASKED_MAX = 10_000
"""How many transactions one call asks for."""
_SLICE = 500
"""After so many partitions others have their turn."""

logger = structlog.get_logger()

Resolve = Callable[[list[TransactionId]], Awaitable[dict[TransactionId, TransactionState]]]


class TransactionResolver:
    """``resolve`` asks the coordinators, and gives what they have answered."""

    def __init__(self, partitions: Partitions, resolve: Resolve, clock: Clock) -> None:
        self._partitions = partitions
        self._resolve = resolve
        self._clock = clock
        self._asking = TaskSet()

    def tick(self) -> None:
        """Each second. One round at a time."""
        if not self._asking:
            self._asking.start(self._ask())

    async def close(self) -> None:
        await self._asking.cancel()

    async def _ask(self) -> None:
        before = Microseconds(self._clock.time_us() - OPEN_US)
        found: list[tuple[Partition, set[TransactionId]]] = []
        for count, (_, partition) in enumerate(self._partitions.opened(), 1):
            if transactions := open_in(partition, before):
                found.append((partition, transactions))
            if count % _SLICE == 0:
                await asyncio.sleep(0)
        wanted = sorted(set().union(*(transactions for _, transactions in found)))[:_ASKED_MAX]
        if not wanted:
            return
        states = await self._resolve(wanted)
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
