"""The order of one partition's batches: which to send next, and what a failure means for the rest.

A pure machine. Batches carry consecutive sequences, so that the partition stores each exactly once
and in order, however often it is sent. A few are in flight at a time. After a failure nothing is
sent until everything in flight is settled; then what is unacknowledged goes again, lowest first,
with the sequences it had. A batch that is given up leaves a hole that no later sequence can pass:
once all before it is acknowledged, the queue needs a new session.

Invariant: ``unacknowledged`` is in order of sequence, and those without one yet are at its end.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from itertools import islice

import msgspec

from quiver.client.producer.pending_batch import PendingBatch
from quiver.errors import (
    Overloaded,
    ProducerFenced,
    QuiverError,
    QuotaExceeded,
    RequestTimeout,
    SequenceGap,
    StaleLayout,
)
from quiver.model.envelope import ProducerStamp
from quiver.model.ids import NO_SEQUENCE, ProducerEpoch, ProducerId, Sequence

IN_FLIGHT_MAX = 5
"""Batches of one partition sent and unanswered; fewer than a partition recognises again."""
_NOT_STORED = (Overloaded, QuotaExceeded, SequenceGap, StaleLayout)
"""After these a batch is certainly not stored; after any other retryable error it may be."""


class ProducerSession(msgspec.Struct, frozen=True):
    """Who the batches are stamped by."""

    producer_id: ProducerId
    epoch: ProducerEpoch
    flags: int = 0
    """Of the envelope: whether the batches belong to a transaction."""
    is_numbered: bool = True
    """Whether batches have sequences. One without is not sent again if it may be stored."""


class Verdict(Enum):
    """What to do about a batch that failed."""

    RETRY = "retry"
    GIVE_UP = "give up"
    STOP = "stop"
    """The whole producer must stop."""


class PartitionQueue:
    def __init__(self, partition: int, session: ProducerSession | None) -> None:
        self.partition = partition
        self.unacknowledged: deque[PendingBatch] = deque()
        self.in_flight = 0
        self.failures = 0
        """How many attempts in a row have failed."""
        self.is_recovering = False
        """Something failed: nothing is sent before ``resume``."""
        self._session = session
        self._next_sequence = 0
        self._hole: int | None = None
        """The lowest sequence that the partition will never see in this session."""

    @property
    def flags(self) -> int:
        return 0 if self._session is None else self._session.flags

    @property
    def is_used(self) -> bool:
        """Whether the partition may have something of this session."""
        return self._next_sequence > 0

    @property
    def has_hole(self) -> bool:
        return self._hole is not None

    @property
    def needs_session(self) -> bool:
        """Whether nothing more can be done in this session.

        What comes before the hole may be stored already, and only this session can tell.
        """
        return self._hole is not None and not any(map(self._is_before_hole, self.unacknowledged))

    @property
    def can_send(self) -> bool:
        return not self.is_recovering and not self.needs_session and self.in_flight < IN_FLIGHT_MAX

    @property
    def is_settled(self) -> bool:
        return self.in_flight == 0

    @property
    def is_certain(self) -> bool:
        """Whether nothing is stored of what is unacknowledged: what is not first comes later."""
        return self.is_settled and not any(
            batch.is_in_doubt for batch in islice(self.unacknowledged, 1)
        )

    def append(self, batch: PendingBatch) -> None:
        self.unacknowledged.append(batch)

    def next_to_send(self) -> PendingBatch | None:
        """The lowest batch that is not in flight, if one may be sent now."""
        if not self.can_send or self.in_flight == len(self.unacknowledged):
            return None
        # Everything in flight was sent before it, so it stands right behind.
        batch = self.unacknowledged[self.in_flight]
        assert not batch.is_in_flight, "what is in flight comes first"
        return batch if self._hole is None or self._is_before_hole(batch) else None

    def sent(self, batch: PendingBatch) -> ProducerStamp | None:
        """The batch goes out now; the stamp it carries, or ``None`` if there is no session."""
        batch.is_in_flight = True
        batch.attempts += 1
        self.in_flight += 1
        if self._session is None:
            return None
        if batch.sequence is None:
            batch.sequence = self._next_sequence
            self._next_sequence += batch.count
        return ProducerStamp(
            producer_id=self._session.producer_id,
            producer_epoch=self._session.epoch,
            sequence=Sequence(batch.sequence) if self._session.is_numbered else NO_SEQUENCE,
        )

    def acknowledged(self, batch: PendingBatch) -> None:
        self._landed(batch)
        self.failures = 0
        self.unacknowledged.remove(batch)

    def failed(self, batch: PendingBatch, error: QuiverError) -> Verdict:
        """What becomes of a batch that was answered with an error, or not at all."""
        self._landed(batch)
        batch.last_error = error
        if isinstance(error, ProducerFenced):
            return Verdict.STOP
        if isinstance(error, SequenceGap):
            if batch is self.unacknowledged[0]:
                # Nothing that is ours to send can fill the gap: the partition forgot the session.
                self._leave_hole(batch)
            self.is_recovering = True
            return Verdict.RETRY
        is_in_doubt = _may_be_stored(batch, error)
        is_unnumbered = self._session is not None and not self._session.is_numbered
        if error.retryable and not (is_unnumbered and is_in_doubt):
            batch.is_in_doubt = is_in_doubt
            self.failures += not self.is_recovering
            self.is_recovering = True
            return Verdict.RETRY
        self.give_up(batch)
        return Verdict.GIVE_UP

    def give_up(self, batch: PendingBatch) -> None:
        """The batch is not sent again."""
        assert not batch.is_in_flight, "it may still be acknowledged"
        self.unacknowledged.remove(batch)
        self._leave_hole(batch)

    def expire(self, opened_by: float) -> list[PendingBatch]:
        """Give up what was opened by then, once all is settled; the batches to fail.

        What was sent after a batch that is given up may be stored or not, and in a new session the
        partition could not tell: to keep it from being stored twice, it is given up as well.
        """
        assert self.is_settled, "what is in flight may still be acknowledged"
        kept: deque[PendingBatch] = deque()
        expired: list[PendingBatch] = []
        for batch in self.unacknowledged:
            if batch.opened <= opened_by or (expired and batch.is_in_doubt):
                expired.append(batch)
                self._leave_hole(batch)
            else:
                kept.append(batch)
        self.unacknowledged = kept
        for batch in expired:
            batch.last_error = batch.last_error or RequestTimeout(
                "no node accepted the message in time"
            )
        return expired

    def resume(self) -> None:
        """The way is clear again: send what is unacknowledged, lowest first."""
        assert self.is_settled, "what is in flight must not be overtaken"
        self.is_recovering = False

    def adopt(self, session: ProducerSession) -> None:
        """Begin anew in a session in which the partition has seen nothing yet."""
        assert self.is_settled, "sequences change only while nothing is in flight"
        self._session, self._next_sequence, self._hole = session, 0, None
        for batch in self.unacknowledged:
            batch.sequence, batch.is_in_doubt = None, False

    def release(self) -> list[PendingBatch]:
        """Give away everything unacknowledged, of which nothing is stored; the queue goes on."""
        assert self.is_certain, "what may be stored stays"
        batches = list(self.unacknowledged)
        self.unacknowledged.clear()
        first = batches[0].sequence if batches else None
        if first is not None:
            # No sequence from here on was ever used.
            self._next_sequence = first
            if self._hole is not None and self._hole >= first:
                self._hole = None
        for batch in batches:
            batch.sequence, batch.is_in_doubt, batch.attempts = None, False, 0
        return batches

    def _landed(self, batch: PendingBatch) -> None:
        assert batch.is_in_flight, "it was sent"
        batch.is_in_flight = False
        self.in_flight -= 1

    def _leave_hole(self, batch: PendingBatch) -> None:
        if batch.sequence is not None:
            self._hole = batch.sequence if self._hole is None else min(self._hole, batch.sequence)

    def _is_before_hole(self, batch: PendingBatch) -> bool:
        assert self._hole is not None, "asked only when there is one"
        return batch.sequence is not None and batch.sequence < self._hole


def _may_be_stored(batch: PendingBatch, error: QuiverError) -> bool:
    """Whether a batch that failed may be stored, now or when another copy of it arrives.

    Whoever refuses a layout has looked first whether the batch was stored before, and one that names
    the layout of now refuses every copy of it.
    """
    if isinstance(error, StaleLayout) and "layout" in error.details:
        return False
    return batch.is_in_doubt or not isinstance(error, _NOT_STORED)
