"""Idempotent producers: decides which batch is new, a duplicate, or out of order.

A pure machine over one partition. A batch carries its producer's id and epoch, and a sequence that counts
the producer's messages in this partition. ``judge`` decides about a batch before it is staged, and
``record`` notes that it was. The same fold over the stored entries rebuilds the state after a restart.
Invariant: within an epoch the recorded batches have consecutive sequences.

Each transaction of a producer is an epoch of its own. It takes no batch any more once its marker is there.
A batch of a transaction may have no sequence (below zero): then it is never taken for a repeat.
"""

from __future__ import annotations

import msgspec

from quiver.errors import (
    ProducerError,
    ProducerFenced,
    SequenceGap,
    TransactionAborted,
    TransactionError,
)
from quiver.model.batch import StoredBatch, UnstoredBatch
from quiver.model.envelope import COMMITTED, MARKER, ended_by
from quiver.model.ids import NO_PRODUCER, Microseconds, Offset, ProducerId
from quiver.model.transaction import producer_of

RECENT_BATCHES = 8
"""How many batches of a producer can be recognised again; more than a client has under way."""
SESSIONS_MAX = 100_000
"""Per partition; beyond it the session that was silent longest is forgotten."""


class StoredRange(msgspec.Struct, frozen=True, array_like=True):
    """Where a producer's batch was stored."""

    sequence: int
    count: int
    base_offset: Offset
    append_time: Microseconds


class ProducerSession(msgspec.Struct, array_like=True):
    """What a partition knows of one producer."""

    epoch: int
    next_sequence: int = 0
    recent: list[StoredRange] = []
    last_user_sequence: int | None = None
    """The highest value of the ``sequence`` column stored for this producer, over all epochs."""
    outcome: bool | None = None
    """Of a transaction that has ended here: whether it was committed."""


class Duplicate(msgspec.Struct, frozen=True):
    """The batch was stored before; ``stored`` says where, if that is still known."""

    stored: StoredRange | None


class ProducerSessions:
    """The sessions of one partition, the most recently active last."""

    def __init__(self, sessions: dict[ProducerId, ProducerSession] | None = None) -> None:
        self._sessions = sessions or {}

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def by_producer(self) -> dict[ProducerId, ProducerSession]:
        return self._sessions

    def judge(self, batch: UnstoredBatch) -> Duplicate | None:
        """``None`` if the batch is the producer's next; raises if it may not be stored."""
        if batch.producer_id == NO_PRODUCER:
            return None
        session = self._sessions.get(batch.producer_id)
        if session is not None and batch.producer_epoch < session.epoch:
            if batch.flags:
                raise TransactionError("the producer has begun another transaction since this one")
            raise ProducerFenced(
                "another producer has opened the same name; stop this one",
                epoch=session.epoch,
            )
        current = session is not None and batch.producer_epoch == session.epoch
        expected = session.next_sequence if session is not None and current else 0
        if batch.sequence == expected or (batch.flags and batch.sequence < 0):
            if session is not None and current and session.outcome is not None:
                raise _ended(session.outcome)
            return None
        if batch.sequence > expected:
            raise SequenceGap(
                f"the batch at sequence {expected:,} is missing; {batch.sequence:,} came instead",
                expected=expected,
            )
        assert session is not None, "a session that expects more than 0 exists"
        if batch.sequence + batch.count > expected:
            raise ProducerError(
                f"the batch at sequence {batch.sequence:,} mixes old and new messages; the next "
                f"sequence is {expected:,}",
                expected=expected,
            )
        for stored in session.recent:
            if (stored.sequence, stored.count) == (batch.sequence, batch.count):
                return Duplicate(stored)
        return Duplicate(None)

    def record(self, entry: StoredBatch, last_user_sequence: int | None) -> None:
        """Note a batch that was staged, or that the log held already."""
        if entry.producer_id == NO_PRODUCER:
            return
        if entry.flags & MARKER:
            self._end(entry)
            return
        session = self._sessions.pop(entry.producer_id, None)
        if session is None:
            session = ProducerSession(entry.producer_epoch)
        elif entry.producer_epoch != session.epoch:
            session = ProducerSession(
                entry.producer_epoch, last_user_sequence=session.last_user_sequence
            )
        self._sessions[entry.producer_id] = session
        if entry.sequence >= 0:
            session.next_sequence = entry.sequence + entry.count
            session.recent = [
                *session.recent[1 - RECENT_BATCHES :],
                StoredRange(entry.sequence, entry.count, entry.base_offset, entry.append_time),
            ]
        if last_user_sequence is not None:
            known = session.last_user_sequence
            session.last_user_sequence = (
                last_user_sequence if known is None else max(last_user_sequence, known)
            )
        while len(self._sessions) > SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]

    def _end(self, marker: StoredBatch) -> None:
        """Transactions ended. If a producer has begun another, that one has a later epoch."""
        for producer, epoch in map(producer_of, ended_by(marker)):
            session = self._sessions.get(producer)
            if session is not None and session.epoch == epoch:
                session.outcome = bool(marker.flags & COMMITTED)

    def skip(self, batch: UnstoredBatch) -> None:
        """All messages of the producer's next batch were stored before, by whomever."""
        if batch.producer_id == NO_PRODUCER or batch.sequence < 0:
            return
        session = self._sessions.get(batch.producer_id)
        if session is None or session.epoch != batch.producer_epoch:
            last = None if session is None else session.last_user_sequence
            session = ProducerSession(batch.producer_epoch, last_user_sequence=last)
            self._sessions[batch.producer_id] = session
        session.next_sequence = batch.sequence + batch.count

    def import_handover(self, producer_id: ProducerId, epoch: int, last_user_sequence: int) -> None:
        """The producer has come so far in the partition from which this one was split."""
        session = self._sessions.setdefault(producer_id, ProducerSession(epoch))
        known = session.last_user_sequence
        session.last_user_sequence = max(last_user_sequence, -1 if known is None else known)

    def last_user_sequence(self, producer_id: ProducerId) -> int | None:
        session = self._sessions.get(producer_id)
        return None if session is None else session.last_user_sequence


def _ended(is_committed: bool) -> TransactionError:
    if is_committed:
        return TransactionError("the transaction was committed: begin another for more messages")
    return TransactionAborted("the transaction was aborted: begin another")
