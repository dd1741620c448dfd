"""The coordinator of one partition of ``__transactions``, as long as this node leads it.

It writes down each decision before anybody hears of it: clients, participants and partitions that ask.
When it is opened it reads what was decided, and goes on to tell those who have not confirmed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

import msgspec
import structlog

from quiver.aio import TaskSet, call_later, retrieve_exception
from quiver.broker.partition.partition import Partition
from quiver.broker.transactions.machine import Ending, Records, TransactionMachine
from quiver.broker.transactions.outcome_sender import Outcomes, OutcomeSender
from quiver.broker.transactions.records import Decided, Outcome
from quiver.broker.transactions.transaction_log import TransactionLog
from quiver.errors import QuiverError, TransactionError
from quiver.model.clock import Clock
from quiver.model.ids import Microseconds, ProducerId
from quiver.model.transaction import TransactionId, TransactionState
from quiver.protocol import Participant

COMPLETE_S = 3.0
"""How long a client waits for the participants. They hear of the outcome in any case."""

logger = structlog.get_logger()

Close = Callable[[Participant, Outcomes], Awaitable[None]]


class Ended(msgspec.Struct, frozen=True):
    is_committed: bool
    is_complete: bool


class TransactionCounts:
    """What a node has decided since it started."""

    __slots__ = ("aborted", "committed")

    def __init__(self) -> None:
        self.committed = self.aborted = 0

    def add(self, outcome: Outcome) -> None:
        if outcome.is_committed:
            self.committed += 1
        else:
            self.aborted += 1


class TransactionCoordinator:
    """Open between ``open`` and ``close``, or until a write fails."""

    def __init__(
        self, partition: Partition, close: Close, counts: TransactionCounts, clock: Clock
    ) -> None:
        self._log = TransactionLog(partition, clock)
        self._machine = TransactionMachine()
        self._sender = OutcomeSender(close, self._confirmed, clock)
        self._counts = counts
        self._clock = clock
        self._opened_us, self._opened = clock.time_us(), clock.monotonic()
        self._completions: dict[TransactionId, list[asyncio.Future[bool]]] = {}
        """Who waits until all participants of a transaction know."""
        self._checkpointing = TaskSet()
        self._is_closed = False

    @classmethod
    async def open(
        cls, partition: Partition, close: Close, counts: TransactionCounts, clock: Clock
    ) -> TransactionCoordinator:
        """What the partition says, and on with what is not complete."""
        coordinator = cls(partition, close, counts, clock)
        machine = coordinator._machine
        async for record in coordinator._log.replay():
            machine.apply(record)
        for transaction, one in machine.unfinished.items():
            coordinator._send(transaction, one.outcome, list(one.left))
        return coordinator

    def serves(self, partition: Partition) -> bool:
        """Whether it is the coordinator of this very partition, and can decide."""
        is_same = self._log.partition is partition
        return is_same and self._log.failure is None and not self._is_closed

    @property
    def unfinished_count(self) -> int:
        """How many transactions are decided and not known to all participants."""
        return len(self._machine.unfinished)

    # ------------------------------------------------------------------ what clients do

    async def begin(self, name: str, owner: str, producer: ProducerId, names_max: int) -> None:
        """Give a name to a producer, durably. Its predecessor commits nothing from then on."""
        await self._log.partition.log.wait_for_room()
        await self._written(self._machine.begin(name, owner, producer, names_max, self._now()))

    async def join(
        self, transaction: TransactionId, timeout_us: int, participants: Iterable[Participant]
    ) -> None:
        await self._written(self._machine.join(transaction, timeout_us, participants, self._now()))

    async def end(self, ending: Ending) -> Ended:
        """Commit or abort; the error of its outcome if it cannot be committed any more.

        Whatever the answer, the participants have heard of it by then, if they can be reached.
        """
        if not self._log.partition.log.has_room:
            await self._log.partition.log.wait_for_room()
        outcome, records = self._machine.end(ending, self._now())
        await self._written(records)
        is_complete = await self._complete(ending.transaction)
        if ending.is_commit:
            error = outcome.error()
            if error is not None:
                raise error
        elif outcome.is_committed:
            raise TransactionError(
                f"transaction {ending.transaction} is committed already: it cannot be aborted",
                transaction=ending.transaction,
            )
        return Ended(outcome.is_committed, is_complete)

    async def describe(self, transaction: TransactionId) -> TransactionState:
        state = self._machine.describe(transaction)
        await self._written([])
        return state

    async def _complete(self, transaction: TransactionId) -> bool:
        """Whether all participants know in time."""
        if transaction not in self._machine.unfinished:
            return True
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        waiters = self._completions.setdefault(transaction, [])
        waiters.append(waiter)
        timer = call_later(self._clock, COMPLETE_S, partial(_answer, waiter, False))
        try:
            return await waiter
        finally:
            timer.cancel()
            waiters.remove(waiter)

    # ------------------------------------------------------------------ what partitions do

    async def resolve(
        self, transactions: Iterable[TransactionId]
    ) -> dict[TransactionId, TransactionState]:
        states, records = self._machine.resolve(transactions, self._now())
        await self._written(records)
        return states

    def _send(
        self, transaction: TransactionId, outcome: Outcome, participants: list[Participant]
    ) -> None:
        self._sender.send(transaction, is_committed=outcome.is_committed, to=participants)

    def _confirmed(self, participant: Participant, transactions: list[TransactionId]) -> None:
        complete, records = self._machine.confirm(participant, transactions)
        if records:
            self._log.write_later(records)
        for transaction in complete:
            for waiter in self._completions.pop(transaction, ()):
                _answer(waiter, True)

    # ------------------------------------------------------------------ writing

    async def _written(self, records: Records) -> None:
        """Return when this and everything before it is durable: an answer may tell of all of it."""
        stored = self._write(records) if records else self._log.underway()
        if stored is not None:
            await asyncio.shield(stored)

    def _write(self, records: Records) -> asyncio.Future[None]:
        stored = self._log.write(records)
        for record in records:
            if isinstance(record, Decided):
                stored.add_done_callback(partial(self._decided, record))
        return stored

    def _decided(self, record: Decided, stored: asyncio.Future[None]) -> None:
        """A decision is durable: now the participants may know."""
        if retrieve_exception(stored) is None and not self._is_closed:
            self._counts.add(record.outcome)
            self._send(record.transaction, record.outcome, record.participants)

    def tick(self) -> None:
        """Abort what has been open for too long, and write a checkpoint if one is due."""
        if self._log.failure is not None or self._is_closed:
            return
        records = self._machine.tick(self._now())
        if records:
            self._write(records)
        if self._log.is_checkpoint_due and not self._checkpointing:
            self._checkpointing.start(self._checkpoint())

    async def _checkpoint(self) -> None:
        try:
            await self._log.checkpoint(self._machine.checkpoint())
        except QuiverError as error:
            logger.warning("checkpoint of transactions failed", error=error.message)

    async def close(self) -> None:
        """Let go of the partition. Whoever leads it next goes on."""
        if not self._is_closed:
            self._is_closed = True
            self._log.close()
            await self._sender.stop()
            await self._checkpointing.wait()
            for waiters in self._completions.values():
                for waiter in waiters:
                    _answer(waiter, False)

    def _now(self) -> Microseconds:
        """The time, which does not jump while this is open."""
        elapsed = self._clock.monotonic() - self._opened
        return Microseconds(self._opened_us + round(elapsed * 1_000_000))


def _answer(waiter: asyncio.Future[bool], is_complete: bool) -> None:
    if not waiter.done():
        waiter.set_result(is_complete)
