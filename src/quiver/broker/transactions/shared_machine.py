"""What a coordinator decides about shared transactions, besides those that stand alone.

A commit names the parts that count. In one record they are committed, and all other parts of this number
are aborted. A part alone can be aborted, but not committed. Whoever joins under a higher number ends what is
open of the lower ones. Who repeats a call gets the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from quiver.broker.transactions.machine import (
    OPEN_MAX,
    UNTOLD_MAX,
    Ending,
    Open,
    Records,
    TransactionMachine,
    committed_error,
    require_few,
)
from quiver.broker.transactions.records import (
    AnyTransactionRecord,
    Checkpoint,
    Decided,
    Named,
    NamesForgotten,
    Outcome,
    PartJoined,
    SharedEnded,
)
from quiver.broker.transactions.shared import Part, Shared, SharedEnding, SharedTransactions
from quiver.errors import InvalidRequest, Overloaded, TransactionNotFound, TransactionTooLarge
from quiver.model.ids import Microseconds, ProducerId
from quiver.model.transaction import PARTS_MAX, TransactionId
from quiver.protocol import Participant


class SharedTransactionMachine(TransactionMachine):
    def __init__(self) -> None:
        super().__init__()
        self._shared = SharedTransactions()

    # ------------------------------------------------------------------ what clients do

    def begin_shared(
        self, name: str, owner: str, producer: ProducerId, names_max: int, now_us: Microseconds
    ) -> Records:
        """A producer for parts under this name. It fences nobody: numbers do."""
        self._advance(now_us)
        if self._names.holder(name) is not None or name in self._shared.ended_names:
            return []
        forgotten = self._names.to_forget(name, owner, names_max, self._now)
        records: Records = [NamesForgotten(forgotten)] if forgotten else []
        return self._applied([*records, Named(name, owner, producer, self._now)])

    def join_shared(self, part: Part, now_us: Microseconds) -> tuple[bool, Records]:
        """Make a transaction a part, or say that it still is one; whether the number is committed."""
        self._advance(now_us)
        shared = self._shared.get(part.name)
        if part.number <= shared.committed:
            return True, []
        self._require_open(part, shared)
        records: Records = []
        if part.transaction not in shared.parts:
            if part.number > shared.number and shared.parts:
                fenced = SharedEnding(name=part.name, number=shared.number, is_commit=False)
                records.append(self._ended(fenced, shared, Outcome.FENCED))
            records.append(
                PartJoined(part.name, part.number, part.transaction, part.timeout_us, self._now)
            )
            self._applied(records)
            shared = self._shared.get(part.name)
        self.open[part.transaction] = shared.heard(self._now, part.participants)
        return False, records

    def _require_open(self, part: Part, shared: Shared) -> None:
        """Raise why this cannot be a part, if so."""
        outcome = self.outcome(part.transaction)
        if part.number < shared.number:
            outcome = Outcome.FENCED
        if outcome is not None:
            raise outcome.error() or committed_error(part.transaction)
        if self._names.holder(part.name) is None:
            raise TransactionNotFound(
                "nobody has begun a shared transaction of this name, or it has ended for good"
            )
        if part.transaction not in self.open and len(self.open) >= OPEN_MAX:
            raise Overloaded(
                f"the coordinator already knows {OPEN_MAX:,} open transactions: try again later"
            )
        is_new = part.number == shared.number and part.transaction not in shared.parts
        if is_new and len(shared.parts) >= PARTS_MAX:
            raise TransactionTooLarge(
                f"the shared transaction has {PARTS_MAX:,} open parts, the most allowed"
            )
        reached = shared.open.participants if shared.open else ()
        require_few(part.transaction, {*reached, *part.participants})

    def join(
        self,
        transaction: TransactionId,
        timeout_us: int,
        participants: Iterable[Participant],
        now_us: Microseconds,
    ) -> Records:
        if transaction in self._shared:
            raise _is_part(transaction)
        return super().join(transaction, timeout_us, participants, now_us)

    def end(self, ending: Ending, now_us: Microseconds) -> tuple[Outcome, Records]:
        if ending.is_commit and ending.transaction in self._shared:
            raise _is_part(ending.transaction)
        return super().end(ending, now_us)

    def end_shared(self, ending: SharedEnding, now_us: Microseconds) -> tuple[Outcome, Records]:
        """Decide all parts of a number, unless it is committed. To repeat it gives the same outcome."""
        self._advance(now_us)
        shared = self._shared.get(ending.name)
        known = [self.outcome(part) for part in ending.parts]
        if ending.number <= shared.committed or Outcome.COMMITTED in known:
            return Outcome.COMMITTED, []
        if ending.is_commit:
            return self._commit(ending, shared, known)
        if ending.number != shared.number and not ending.is_last:
            return Outcome.ABORTED, []
        return Outcome.ABORTED, self._applied([self._ended(ending, shared, Outcome.ABORTED)])

    def _commit(
        self, ending: SharedEnding, shared: Shared, known: list[Outcome | None]
    ) -> tuple[Outcome, Records]:
        """All parts that are named, or none. ``known`` are the outcomes of those that have ended."""
        self._require_told()
        for outcome in known:
            if outcome is not None:
                return outcome, []
        are_parts = ending.parts and shared.parts.issuperset(ending.parts)
        if ending.number != shared.number or not are_parts:
            return Outcome.FENCED, []
        late = [part for part in ending.parts if self._is_overdue(part)]
        if late:
            return Outcome.TIMED_OUT, self._applied(
                [
                    self._decision(one, Outcome.TIMED_OUT, self.open[one].participants)
                    for one in late
                ]
            )
        return Outcome.COMMITTED, self._applied([self._ended(ending, shared, Outcome.COMMITTED)])

    def _is_overdue(self, part: TransactionId) -> bool:
        opened = self.open.get(part)
        return opened is not None and self._now >= opened.deadline_us

    def _ended(self, ending: SharedEnding, shared: Shared, outcome: Outcome) -> SharedEnded:
        reached = set(ending.participants) | (shared.open.participants if shared.open else set())
        committed = ending.parts if outcome.is_committed else []
        if committed:
            require_few(committed[0], reached)
            _require_tellable(len(shared.parts), len(reached))
        return SharedEnded(
            ending.name,
            ending.number,
            committed,
            sorted(shared.parts.difference(committed)),
            Outcome.ABORTED if committed else outcome,
            self._decision(TransactionId(0), outcome, reached).participants,
            self._now,
            ending.is_last,
        )

    # ------------------------------------------------------------------ what partitions do

    def _found_open(self, transaction: TransactionId) -> Open:
        shared = self._shared.of(transaction)
        if shared is None:
            return super()._found_open(transaction)
        return shared.open or shared.heard(self._now)

    def _advance(self, now_us: Microseconds) -> None:
        super()._advance(now_us)
        self._shared.expire(now_us)

    # ------------------------------------------------------------------ the fold

    def apply(self, record: AnyTransactionRecord) -> None:
        if isinstance(record, PartJoined):
            self._shared.joined(record)
            self._names.touch(record.name, record.time_us)
        elif isinstance(record, SharedEnded):
            for decided in record.decisions:
                self.apply(decided)
            self._shared.ended(record)
            self._names.touch(record.name, record.time_us)
            if record.is_last:
                self._names.forget(record.name)
        else:
            super().apply(record)
            if isinstance(record, Decided):
                self._shared.decided(record.transaction)
            elif isinstance(record, NamesForgotten):
                for name in record.names:
                    self._shared.forget(name)

    # ------------------------------------------------------------------ checkpoints

    def checkpoint(self) -> Checkpoint:
        saved = super().checkpoint()
        alone = [one for one in saved.joined if one.transaction not in self._shared]
        return msgspec.structs.replace(
            saved,
            joined=alone,
            shared=self._shared.saved(),
            ended_names=dict(self._shared.ended_names),
        )

    def _restore(self, saved: Checkpoint) -> None:
        super()._restore(saved)
        self._shared = SharedTransactions.restored(saved)


def decisions_in(record: AnyTransactionRecord) -> list[Decided]:
    """What a record decides."""
    if isinstance(record, SharedEnded):
        return record.decisions
    return [record] if isinstance(record, Decided) else []


def _require_tellable(parts: int, partitions: int) -> None:
    if parts * partitions > UNTOLD_MAX:
        raise TransactionTooLarge(
            f"{parts:,} parts of the shared transaction reach {partitions:,} partitions: use fewer of "
            "either"
        )


def _is_part(transaction: TransactionId) -> InvalidRequest:
    return InvalidRequest(
        f"transaction {transaction} is part of a shared one: commit that, with its number",
        transaction=transaction,
    )
