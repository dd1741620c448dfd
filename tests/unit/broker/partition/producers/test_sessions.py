"""Idempotent producers: the machine against a model that remembers everything."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiver.broker.partition.producers import sessions
from quiver.broker.partition.producers.dedup import DedupWindow
from quiver.broker.partition.producers.gaps import LogGaps
from quiver.broker.partition.producers.open_transactions import OpenTransactions
from quiver.broker.partition.producers.sessions import (
    RECENT_BATCHES,
    Duplicate,
    ProducerSessions,
)
from quiver.broker.partition.producers.state import ProducerState, decode_snapshot
from quiver.errors import ProducerError, ProducerFenced, SequenceGap
from quiver.model.batch import StoredBatch, UnstoredBatch
from quiver.model.envelope import ProducerStamp, seal_batch, store_batch
from quiver.model.ids import (
    NO_PRODUCER,
    LeaderEpoch,
    Microseconds,
    Offset,
    ProducerEpoch,
    ProducerId,
    Sequence,
)
from quiver.model.schema import PAYLOAD


def _batch(producer: int, epoch: int, sequence: int, count: int = 1) -> UnstoredBatch:
    stamp = ProducerStamp(ProducerId(producer), ProducerEpoch(epoch), Sequence(sequence))
    return seal_batch(b"body", count, PAYLOAD, stamp)


def _stored(batch: UnstoredBatch, offset: int) -> StoredBatch:
    return store_batch(
        batch,
        base_offset=Offset(offset),
        epoch=LeaderEpoch(0),
        append_time=Microseconds(1000 + offset),
        durable_offset=Offset(0),
    )


class Log:
    """A partition without a log: sessions, and the entries that they let pass."""

    def __init__(self) -> None:
        self.sessions = ProducerSessions()
        self.entries: list[StoredBatch] = []

    @property
    def next_offset(self) -> int:
        return self.entries[-1].next_offset if self.entries else 0

    def offer(self, producer: int, epoch: int, sequence: int, count: int = 1) -> object:
        """The new entry, or the ``Duplicate``, or the class of the error."""
        batch = _batch(producer, epoch, sequence, count)
        try:
            repeat = self.sessions.judge(batch)
        except ProducerError as error:
            return type(error)
        if repeat is not None:
            return repeat
        entry = _stored(batch, self.next_offset)
        self.entries.append(entry)
        self.sessions.record(entry, None)
        return entry


# ---------------------------------------------------------------------- by example


def test_consecutive_batches_are_new() -> None:
    log = Log()
    for sequence, count in ((0, 3), (3, 1), (4, 10)):
        assert isinstance(log.offer(1, 0, sequence, count), StoredBatch)


def test_a_repeat_is_told_where_the_original_is() -> None:
    log = Log()
    log.offer(9, 0, 0, 5)
    log.offer(1, 0, 0, 3)
    repeat = log.offer(1, 0, 0, 3)
    assert isinstance(repeat, Duplicate)
    assert repeat.stored is not None
    assert (repeat.stored.base_offset, repeat.stored.append_time) == (5, 1005)


def test_a_gap_is_refused_with_the_sequence_that_was_expected() -> None:
    log = Log()
    log.offer(1, 0, 0, 3)
    with pytest.raises(SequenceGap) as refused:
        log.sessions.judge(_batch(1, 0, 4))
    assert refused.value.details["expected"] == 3


def test_a_new_producer_begins_at_zero() -> None:
    assert Log().offer(1, 0, 1) is SequenceGap


def test_a_new_epoch_begins_at_zero_and_fences_the_old_one() -> None:
    log = Log()
    log.offer(1, 0, 0, 3)
    assert log.offer(1, 1, 3) is SequenceGap
    assert isinstance(log.offer(1, 1, 0), StoredBatch)
    assert log.offer(1, 0, 3) is ProducerFenced
    assert log.offer(1, 0, 0, 3) is ProducerFenced


def test_a_repeat_older_than_is_remembered_is_still_no_new_batch() -> None:
    log = Log()
    for sequence in range(RECENT_BATCHES + 1):
        log.offer(1, 0, sequence)
    assert log.offer(1, 0, 0) == Duplicate(None)


def test_a_batch_that_repeats_some_messages_and_adds_others_is_refused() -> None:
    log = Log()
    log.offer(1, 0, 0, 5)
    assert log.offer(1, 0, 3, 4) is ProducerError


def test_batches_without_a_producer_are_never_repeats() -> None:
    log = Log()
    for _ in range(3):
        assert isinstance(log.offer(NO_PRODUCER, 0, 0), StoredBatch)
    assert len(log.sessions) == 0


def test_the_highest_own_sequence_survives_a_new_epoch() -> None:
    sessions = ProducerSessions()
    for offset, (epoch, own) in enumerate([(0, 7), (0, None), (1, 3), (1, 9), (2, None)]):
        sequence = 1 if offset in (1, 3) else 0
        sessions.record(_stored(_batch(1, epoch, sequence), offset), own)
    assert sessions.last_user_sequence(ProducerId(1)) == 9
    assert sessions.last_user_sequence(ProducerId(2)) is None


def test_own_sequences_may_be_below_zero() -> None:
    sessions = ProducerSessions()
    sessions.record(_stored(_batch(1, 0, 0), 0), -5)
    assert sessions.last_user_sequence(ProducerId(1)) == -5


def test_beyond_the_bound_the_session_that_was_silent_longest_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "SESSIONS_MAX", 3)
    log = Log()
    for producer in (1, 2, 3):
        log.offer(producer, 0, 0)
    log.offer(1, 0, 1)
    log.offer(4, 0, 0)
    assert sorted(log.sessions.by_producer) == [1, 3, 4]


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x93\x01\x02\x03", b"\x80", b"junk" * 10])
def test_a_damaged_snapshot_is_no_snapshot(data: bytes) -> None:
    assert decode_snapshot(data) is None


# ---------------------------------------------------------------------- by chance


class Step(NamedTuple):
    """What a producer does next; ``ahead`` is how far its sequence is from the expected one."""

    producer: int
    epoch: int
    ahead: int
    count: int


steps = st.lists(
    st.builds(
        Step,
        producer=st.integers(1, 2),
        epoch=st.sampled_from([1, 1, 1, 0, 2]),
        ahead=st.sampled_from([0, 0, 0, -1, -2, -3, -20, 1]),
        count=st.integers(1, 3),
    ),
    max_size=60,
)


class Model:
    """Everything that one producer has stored in its newest epoch, by batch."""

    def __init__(self) -> None:
        self.epoch = -1
        self.known = 0
        self.batches: dict[tuple[int, int], int] = {}

    def sequence(self, step: Step) -> int:
        return max(0, (self.known if step.epoch == self.epoch else 0) + step.ahead)

    def expected(self, step: Step, offset: int) -> object:
        sequence = self.sequence(step)
        if step.epoch < self.epoch:
            return ProducerFenced
        if sequence > (self.known if step.epoch == self.epoch else 0):
            return SequenceGap
        if step.epoch > self.epoch:
            self.epoch, self.known, self.batches = step.epoch, 0, {}
        if sequence < self.known:
            return Duplicate if sequence + step.count <= self.known else ProducerError
        self.batches[sequence, step.count] = offset
        self.known += step.count
        return StoredBatch


@settings(max_examples=150)
@given(steps)
def test_what_is_stored_is_each_producer_s_messages_once_and_in_order(taken: list[Step]) -> None:
    log = Log()
    models = {1: Model(), 2: Model()}
    for step in taken:
        model, offset = models[step.producer], log.next_offset
        sequence = model.sequence(step)
        expected = model.expected(step, offset)
        result = log.offer(step.producer, step.epoch, sequence, step.count)
        if isinstance(result, Duplicate) and result.stored is not None:
            assert model.batches[sequence, step.count] == result.stored.base_offset
        assert expected is (result if isinstance(result, type) else type(result))


def _encoded(sessions: ProducerSessions, offset: Offset) -> bytes:
    return ProducerState(DedupWindow(0), sessions, OpenTransactions(), LogGaps()).snapshot(offset)


@settings(max_examples=80)
@given(steps, st.integers(0, 59))
def test_a_snapshot_and_the_entries_since_give_the_same_state(taken: list[Step], cut: int) -> None:
    live = Log()
    models = {1: Model(), 2: Model()}
    snapshot = _encoded(live.sessions, Offset(0))
    for number, step in enumerate(taken):
        if number == cut:
            snapshot = _encoded(live.sessions, Offset(live.next_offset))
        model = models[step.producer]
        sequence = model.sequence(step)
        model.expected(step, live.next_offset)
        live.offer(step.producer, step.epoch, sequence, step.count)
    decoded = decode_snapshot(snapshot)
    assert decoded is not None
    rebuilt = ProducerSessions(decoded.sessions)
    for entry in live.entries:
        if entry.base_offset >= decoded.offset:
            rebuilt.record(entry, None)
    assert rebuilt.by_producer == live.sessions.by_producer
