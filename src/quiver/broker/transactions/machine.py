"""What one coordinator decides: a pure machine over the records of its partition.

A transaction is decided once. It is committed only if it was not decided before, if nobody has begun under
its name since, and if its time limit has not passed. Of everything that is not committed the answer is, in
the end, that it is aborted. Each call is given the time, and returns the records of what it has changed. Its
answer counts once these are durable.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from quiver.broker.transactions.names import TransactionNames
from quiver.broker.transactions.outcomes import KEPT_US, OutcomeHistory
from quiver.broker.transactions.records import (
    AnyTransactionRecord,
    Checkpoint,
    Completed,
    Decided,
    Joined,
    Named,
    NamesForgotten,
    Outcome,
    SavedName,
)
from quiver.errors import (
    Overloaded,
    TransactionError,
    TransactionNotFound,
    TransactionTooLarge,
)
from quiver.model.ids import Microseconds, ProducerId
from quiver.model.transaction import (
    PARTICIPANTS_MAX,
    TIMEOUT_S,
    TransactionId,
    TransactionState,
    producer_of,
)
from quiver.protocol import Participant

TIMEOUT_US = round(TIMEOUT_S * 1_000_000)
OPEN_MAX = 200_000
"""How many open transactions a coordinator knows. Of others the partitions ask again."""
UNTOLD_MAX = 500_000
"""How often a partition may have to be told of a decided transaction. Beyond that nothing is decided."""

Records = list[AnyTransactionRecord]


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """What a client says when it commits or aborts."""

    transaction: TransactionId
    is_commit: bool
    name: str | None = None
    """Under which it was begun, as it is stored."""
    participants: list[Participant] = []
    age_us: int = 0
    timeout_us: int = TIMEOUT_US


class Open(msgspec.Struct):
    """A transaction that is not decided, or all parts of a shared one. Aborted after its time limit."""

    begun_us: Microseconds
    """When it began; of a shared one, when one of its clients was last heard of."""
    timeout_us: int
    participants: set[Participant]

    @property
    def deadline_us(self) -> int:
        return self.begun_us + self.timeout_us


class Unfinished(msgspec.Struct):
    """A transaction that is decided, while some of its participants do not know."""

    outcome: Outcome
    left: set[Participant]
    """Those that do not know it durably."""
    time_us: Microseconds
    unshown: set[Participant]
    """Those whose readers may not see it."""


def _unfinished(
    outcome: Outcome, participants: Iterable[Participant], time_us: Microseconds
) -> Unfinished:
    left = set(participants)
    return Unfinished(outcome, left, time_us, left.copy())


class TransactionMachine:
    def __init__(self) -> None:
        self.open: dict[TransactionId, Open] = {}
        self.unfinished: dict[TransactionId, Unfinished] = {}
        self._untold = 0
        """How many participants of decided transactions do not know."""
        self._names = TransactionNames()
        self._outcomes = OutcomeHistory()
        self._now = Microseconds(0)

    # ------------------------------------------------------------------ what is known

    def outcome(self, transaction: TransactionId) -> Outcome | None:
        """How a transaction ended, if it did and that is still known."""
        unfinished = self.unfinished.get(transaction)
        return self._outcomes.of(transaction) if unfinished is None else unfinished.outcome

    def describe(self, transaction: TransactionId) -> TransactionState:
        outcome = self.outcome(transaction)
        if outcome is not None:
            return _state_of(outcome)
        return TransactionState.OPEN if transaction in self.open else TransactionState.UNKNOWN

    # ------------------------------------------------------------------ what clients do

    def begin(
        self, name: str, owner: str, producer: ProducerId, names_max: int, now_us: Microseconds
    ) -> Records:
        """Give a name to a producer. What its predecessor has open is aborted."""
        self._advance(now_us)
        records: Records = []
        forgotten = self._names.to_forget(name, owner, names_max, self._now)
        if forgotten:
            records.append(NamesForgotten(forgotten))
        before = self._names.holder(name)
        records.append(Named(name, owner, producer, self._now))
        records += [
            self._decision(transaction, Outcome.FENCED, one.participants)
            for transaction, one in self.open.items()
            if producer_of(transaction)[0] == before
        ]
        return self._applied(records)

    def join(
        self,
        transaction: TransactionId,
        timeout_us: int,
        participants: Iterable[Participant],
        now_us: Microseconds,
    ) -> Records:
        """Learn of a transaction in advance; the error of its outcome if it has ended."""
        self._advance(now_us)
        outcome = self.outcome(transaction)
        if outcome is None and self._outcomes.is_fenced(producer_of(transaction)[0]):
            outcome = Outcome.FENCED
        if outcome is not None:
            raise outcome.error() or committed_error(transaction)
        known = self.open.get(transaction)
        reached = set(participants) | (known.participants if known else set())
        require_few(transaction, reached)
        if known is None and len(self.open) >= OPEN_MAX:
            raise Overloaded(
                f"the coordinator already knows {OPEN_MAX:,} open transactions: try again later"
            )
        begun = self._now if known is None else known.begun_us
        longest = max(timeout_us, known.timeout_us if known else 0)
        self.open[transaction] = Open(begun, longest, reached)
        is_new = known is None or longest > known.timeout_us
        return [Joined(transaction, begun, longest)] if is_new and longest > TIMEOUT_US else []

    def end(self, ending: Ending, now_us: Microseconds) -> tuple[Outcome, Records]:
        """Decide a transaction, unless it is decided. To repeat it gives the same outcome."""
        self._advance(now_us)
        transaction = ending.transaction
        known = self.outcome(transaction)
        if known is not None:
            return known, []
        if ending.age_us >= KEPT_US:
            raise TransactionNotFound(
                f"transaction {transaction} began more than an hour ago: its outcome is not known "
                "any more",
                transaction=transaction,
            )
        self._require_told()
        opened = self.open.get(transaction)
        reached = set(ending.participants) | (opened.participants if opened else set())
        outcome = self._verdict(ending, opened)
        if outcome.is_committed:
            require_few(transaction, reached)
        return outcome, self._applied([self._decision(transaction, outcome, reached)])

    def _require_told(self) -> None:
        if self._untold >= UNTOLD_MAX:
            raise Overloaded(
                f"{len(self.unfinished):,} transactions wait for partitions that cannot be reached: "
                "try again later"
            )

    def _verdict(self, ending: Ending, opened: Open | None) -> Outcome:
        if not ending.is_commit:
            return Outcome.ABORTED
        producer = producer_of(ending.transaction)[0]
        holder = None if ending.name is None else self._names.holder(ending.name)
        if self._outcomes.is_fenced(producer) or holder not in (None, producer):
            return Outcome.FENCED
        is_late = ending.age_us >= ending.timeout_us
        if is_late or (opened is not None and self._now >= opened.deadline_us):
            return Outcome.TIMED_OUT
        return Outcome.COMMITTED

    # ------------------------------------------------------------------ what partitions do

    def resolve(
        self, transactions: Iterable[TransactionId], now_us: Microseconds
    ) -> tuple[dict[TransactionId, TransactionState], Records]:
        """What became of transactions. Those that nobody told of are open from now on."""
        self._advance(now_us)
        states: dict[TransactionId, TransactionState] = {}
        records: Records = []
        for transaction in transactions:
            state = self.describe(transaction)
            if state is TransactionState.UNKNOWN:
                state = TransactionState.OPEN
                if self._outcomes.is_fenced(producer_of(transaction)[0]):
                    records.append(self._decision(transaction, Outcome.FENCED, ()))
                    state = TransactionState.ABORTED
                elif len(self.open) < OPEN_MAX:
                    self.open[transaction] = self._found_open(transaction)
            states[transaction] = state
        return states, self._applied(records)

    def _found_open(self, transaction: TransactionId) -> Open:
        """A partition has messages of a transaction that nobody told of."""
        return Open(self._now, TIMEOUT_US, set())

    def show(
        self, participant: Participant, transactions: Iterable[TransactionId]
    ) -> list[TransactionId]:
        """The readers of a participant see how transactions ended. Those that all see now."""
        shown: list[TransactionId] = []
        for transaction in transactions:
            unfinished = self.unfinished.get(transaction)
            if unfinished is not None and participant in unfinished.unshown:
                unfinished.unshown.discard(participant)
                if not unfinished.unshown:
                    shown.append(transaction)
        return shown

    def is_shown(self, transaction: TransactionId) -> bool:
        """Whether the readers of all its participants see how it ended, as far as is known."""
        unfinished = self.unfinished.get(transaction)
        return unfinished is None or not unfinished.unshown

    def confirm(
        self, participant: Participant, transactions: Iterable[TransactionId]
    ) -> tuple[list[TransactionId], Records]:
        """A participant knows durably how transactions ended. Those that all know of now."""
        complete: list[TransactionId] = []
        for transaction in transactions:
            unfinished = self.unfinished.get(transaction)
            if unfinished is not None and participant in unfinished.left:
                unfinished.left.discard(participant)
                self._untold -= 1
                if not unfinished.left:
                    complete.append(transaction)
        return complete, self._applied([Completed(complete)]) if complete else []

    # ------------------------------------------------------------------ time

    def tick(self, now_us: Microseconds) -> Records:
        """Abort what has been open for longer than its time limit."""
        self._advance(now_us)
        late: Records = []
        for transaction, one in self.open.items():
            one.begun_us = min(one.begun_us, self._now)  # by a clock that was ahead
            if self._now >= one.deadline_us:
                late.append(self._decision(transaction, Outcome.TIMED_OUT, one.participants))
        return self._applied(late)

    def _advance(self, now_us: Microseconds) -> None:
        self._now = now_us
        self._outcomes.expire(now_us)

    # ------------------------------------------------------------------ the fold

    def _decision(
        self, transaction: TransactionId, outcome: Outcome, participants: Iterable[Participant]
    ) -> Decided:
        """Of more participants than one may have, the others ask by themselves."""
        told = _in_order(participants)[:PARTICIPANTS_MAX]
        return Decided(transaction, outcome, told, self._now)

    def _applied(self, records: Records) -> Records:
        for record in records:
            self.apply(record)
        return records

    def apply(self, record: AnyTransactionRecord) -> None:
        """One record, when it is made or read again."""
        if isinstance(record, Decided):
            self._decided(record)
        elif isinstance(record, Completed):
            for transaction in record.transactions:
                unfinished = self.unfinished.pop(transaction, None)
                self._untold -= 0 if unfinished is None else len(unfinished.left)
        elif isinstance(record, Joined):
            self.open[record.transaction] = Open(record.begun_us, record.timeout_us, set())
        elif isinstance(record, Named):
            self._named(record)
        elif isinstance(record, NamesForgotten):
            for name in record.names:
                self._names.forget(name)
        elif isinstance(record, Checkpoint):
            self._restore(record)

    def _decided(self, record: Decided) -> None:
        if self.outcome(record.transaction) is not None:
            return
        self.open.pop(record.transaction, None)
        self._outcomes.add(record.transaction, record.outcome, record.time_us)
        self._names.used(producer_of(record.transaction)[0], record.time_us)
        if record.participants:
            one = _unfinished(record.outcome, record.participants, record.time_us)
            self._untold += len(one.left)
            self.unfinished[record.transaction] = one

    def _named(self, record: Named) -> None:
        before = self._names.holder(record.name)
        if before is not None and before != record.producer:
            self._outcomes.fence(before, record.time_us)
        self._names.keep(record.name, SavedName(record.owner, record.producer, record.time_us))

    def undelivered(self) -> list[Decided]:
        """What is decided, with those participants alone that do not know."""
        return [
            Decided(transaction, one.outcome, _in_order(one.left), one.time_us)
            for transaction, one in self.unfinished.items()
        ]

    # ------------------------------------------------------------------ checkpoints

    def checkpoint(self) -> Checkpoint:
        """All of it, but for what is open by default: partitions ask for that."""
        return Checkpoint(
            self._names.saved(),
            [
                Joined(transaction, one.begun_us, one.timeout_us)
                for transaction, one in self.open.items()
                if one.timeout_us > TIMEOUT_US
            ],
            self.undelivered(),
            self._outcomes.saved(),
        )

    def _restore(self, saved: Checkpoint) -> None:
        self._names = TransactionNames.restored(saved.names)
        self._outcomes = OutcomeHistory.restored(saved.windows)
        self.unfinished = {
            one.transaction: _unfinished(one.outcome, one.participants, one.time_us)
            for one in saved.unfinished
        }
        self._untold = sum(len(one.left) for one in self.unfinished.values())
        self.open = {
            one.transaction: Open(one.begun_us, one.timeout_us, set()) for one in saved.joined
        }


def _state_of(outcome: Outcome) -> TransactionState:
    return TransactionState.COMMITTED if outcome.is_committed else TransactionState.ABORTED


def _in_order(participants: Iterable[Participant]) -> list[Participant]:
    """The order of a set is another one in each process, and this order decides who is told first."""
    found = list(participants)
    if len(found) > 1:
        found.sort(key=lambda one: (one.topic, one.partition))
    return found


def require_few(transaction: TransactionId, participants: set[Participant]) -> None:
    if len(participants) > PARTICIPANTS_MAX:
        raise TransactionTooLarge(
            f"the transaction reaches {len(participants):,} partitions, and one may reach "
            f"{PARTICIPANTS_MAX:,}: commit more often",
            transaction=transaction,
        )


def committed_error(transaction: TransactionId) -> TransactionError:
    return TransactionError(
        f"transaction {transaction} is committed: begin another one", transaction=transaction
    )
