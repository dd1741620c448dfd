"""The coordinator of one partition of ``__transactions``, as long as this node leads it.

It writes down each decision before anybody hears of it: clients, participants and partitions that ask.
When it is opened it reads what was decided, and goes on to tell those who have not confirmed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec
import structlog

from quiver.aio import TaskSet, retrieve_exception
from quiver.broker.partition.partition import Partition
from quiver.broker.transactions.completions import Completions
from quiver.broker.transactions.machine import Ending, Records
from quiver.broker.transactions.outcome_sender import Close, Outcomes, OutcomeSender
from quiver.broker.transactions.records import Decided, Outcome
from quiver.broker.transactions.shared import Part, SharedEnding
from quiver.broker.transactions.shared_machine import SharedTransactionMachine, decisions_in
from quiver.broker.transactions.transaction_log import TransactionLog
from quiver.errors import QuiverError, TransactionError
from quiver.model.clock import Clock
from quiver.model.ids import Microseconds, ProducerId
from quiver.model.transaction import TransactionId, TransactionState
from quiver.protocol import Participant

logger = structlog.get_logger()


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
        self._machine = SharedTransactionMachine()
        self._sender = OutcomeSender(close, self._shown, self._confirmed, clock)
        self._counts = counts
        self._clock = clock
        self._opened_us, self._opened = clock.time_us(), clock.monotonic()
        self._completions = Completions(clock)
        self._deciding: dict[asyncio.Future[None], list[Decided]] = {}
        """Decisions that are not durable, by what is done when they are."""
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
        coordinator._send(machine.undelivered())
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

    async def begin_shared(
        self, name: str, owner: str, producer: ProducerId, names_max: int
    ) -> None:
        """Have a name for shared transactions, durably."""
        await self._log.partition.log.wait_for_room()
        records = self._machine.begin_shared(name, owner, producer, names_max, self._now())
        await self._written(records)

    async def join_shared(self, part: Part) -> bool:
        """Make a transaction a part of a shared one; whether that is committed already."""
        await self._log.partition.log.wait_for_room()
        is_committed, records = self._machine.join_shared(part, self._now())
        await self._written(records)
        return is_committed

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
        transaction = ending.transaction
        outcome, records = self._machine.end(ending, self._now())
        is_complete = await self._ended(transaction, records)
        _require_outcome(outcome, transaction, is_commit=ending.is_commit)
        return Ended(outcome.is_committed, is_complete)

    async def end_shared(self, transaction: TransactionId, ending: SharedEnding) -> Ended:
        """Commit or abort a shared transaction, with all its parts."""
        await self._log.partition.log.wait_for_room()
        outcome, records = self._machine.end_shared(ending, self._now())
        await self._written(records)
        ended = [one.transaction for record in records for one in decisions_in(record)]
        is_complete = True
        for part in dict.fromkeys([*ending.parts, *ended]):
            is_complete = is_complete and await self._complete(part)
        _require_outcome(outcome, transaction, is_commit=ending.is_commit)
        return Ended(outcome.is_committed, is_complete)

    async def _ended(self, transaction: TransactionId, records: Records) -> bool:
        """Return when its outcome is durable; whether all participants know in time."""
        if records and transaction in self._machine.unfinished:
            completion = self._completions.wait(transaction)
            self._write(records)
            return await completion
        await self._written(records)
        return await self._complete(transaction)

    async def _complete(self, transaction: TransactionId) -> bool:
        """Whether all participants know in time, of an outcome that is durable."""
        if self._machine.is_shown(transaction):
            return True
        completion = self._completions.wait(transaction)
        self._completions.limit(transaction)
        return await completion

    async def describe(self, transaction: TransactionId) -> TransactionState:
        state = self._machine.describe(transaction)
        await self._written([])
        return state

    # ------------------------------------------------------------------ what partitions do

    async def resolve(
        self, transactions: Iterable[TransactionId]
    ) -> dict[TransactionId, TransactionState]:
        states, records = self._machine.resolve(transactions, self._now())
        await self._written(records)
        return states

    def _send(self, decided: Iterable[Decided]) -> None:
        """Tell the participants. Each hears of all of them together."""
        told: dict[Participant, Outcomes] = {}
        for record in decided:
            for participant in record.participants:
                outcomes = told.setdefault(participant, {})
                outcomes[record.transaction] = record.outcome.is_committed
        self._sender.send(told)

    def _shown(self, participant: Participant, transactions: list[TransactionId]) -> None:
        for transaction in self._machine.show(participant, transactions):
            self._completions.answer(transaction, is_complete=True)

    def _confirmed(self, participant: Participant, transactions: list[TransactionId]) -> None:
        records = self._machine.confirm(participant, transactions)[1]
        if records:
            self._log.write_later(records)

    # ------------------------------------------------------------------ writing

    async def _written(self, records: Records) -> None:
        """Return when this and everything before it is durable: an answer may tell of all of it."""
        stored = self._write(records) if records else self._log.underway()
        if stored is not None:
            await asyncio.shield(stored)

    def _write(self, records: Records) -> asyncio.Future[None]:
        stored = self._log.write(records)
        decided = [one for record in records for one in decisions_in(record)]
        if decided and stored not in self._deciding:
            self._deciding[stored] = []
            stored.add_done_callback(self._decided)
        if decided:
            self._deciding[stored] += decided
        return stored

    def _decided(self, stored: asyncio.Future[None]) -> None:
        """Decisions are durable: now the participants may know. Or they could not be stored."""
        error, decided = retrieve_exception(stored), self._deciding.pop(stored)
        for record in decided:
            if error is not None:
                self._completions.fail(record.transaction, error)
            elif self._is_closed:  # whoever leads next tells the participants
                self._completions.answer(record.transaction, is_complete=False)
            else:
                self._counts.add(record.outcome)
                self._completions.limit(record.transaction)
        if error is None and not self._is_closed:
            self._send(decided)

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
            self._completions.close()

    def _now(self) -> Microseconds:
        """The time, which does not jump while this is open."""
        elapsed = self._clock.monotonic() - self._opened
        return Microseconds(self._opened_us + round(elapsed * 1_000_000))


def _require_outcome(outcome: Outcome, transaction: TransactionId, *, is_commit: bool) -> None:
    """Raise unless the transaction has ended as it was asked for."""
    if is_commit:
        error = outcome.error()
        if error is not None:
            raise error
    elif outcome.is_committed:
        raise TransactionError(
            f"transaction {transaction} is committed already: it cannot be aborted",
            transaction=transaction,
        )
