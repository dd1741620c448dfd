"""The order of a partition's batches, against a partition that judges sequences."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiver.client.producer.delivery import BatchPromise
from quiver.client.producer.partition_queue import (
    IN_FLIGHT_MAX,
    PartitionQueue,
    ProducerSession,
    Verdict,
)
from quiver.client.producer.pending_batch import PendingBatch
from quiver.errors import (
    ConnectionLost,
    InvalidBatch,
    Overloaded,
    ProducerFenced,
    QuiverError,
    RequestTimeout,
    SequenceGap,
)
from quiver.model.ids import ProducerEpoch, ProducerId

FIRST, SECOND = (ProducerSession(ProducerId(number), ProducerEpoch(0)) for number in (1, 2))


def batch(count: int = 1, opened: float = 0.0) -> PendingBatch:
    pending = PendingBatch(BatchPromise("orders", 0), opened)
    pending.count = count
    return pending


def filled(*counts: int) -> tuple[PartitionQueue, list[PendingBatch]]:
    queue, batches = PartitionQueue(0, FIRST), [batch(count) for count in counts]
    for each in batches:
        queue.append(each)
    return queue, batches


def send_all(queue: PartitionQueue) -> list[tuple[PendingBatch, int]]:
    sent = []
    while (each := queue.next_to_send()) is not None:
        stamp = queue.sent(each)
        assert stamp is not None
        sent.append((each, stamp.sequence))
    return sent


class TestOrder:
    def test_sequences_count_messages(self) -> None:
        queue, batches = filled(3, 1, 5)
        assert send_all(queue) == [(batches[0], 0), (batches[1], 3), (batches[2], 4)]

    def test_only_so_many_are_in_flight(self) -> None:
        queue, batches = filled(*[1] * 10)
        assert len(send_all(queue)) == IN_FLIGHT_MAX
        queue.acknowledged(batches[2])
        assert send_all(queue) == [(batches[IN_FLIGHT_MAX], IN_FLIGHT_MAX)]

    def test_after_a_failure_nothing_is_sent_until_all_is_settled(self) -> None:
        queue, batches = filled(2, 2, 2)
        send_all(queue)
        assert queue.failed(batches[0], Overloaded()) is Verdict.RETRY
        assert queue.next_to_send() is None
        queue.failed(batches[1], SequenceGap(expected=0))
        queue.failed(batches[2], SequenceGap(expected=0))
        assert queue.is_settled
        assert not queue.needs_session
        queue.resume()
        assert send_all(queue) == [(batches[0], 0), (batches[1], 2), (batches[2], 4)]

    def test_what_was_acknowledged_behind_a_lost_answer_is_not_sent_again(self) -> None:
        queue, batches = filled(1, 1, 1)
        send_all(queue)
        queue.failed(batches[0], RequestTimeout())
        queue.acknowledged(batches[1])
        queue.acknowledged(batches[2])
        queue.resume()
        assert send_all(queue) == [(batches[0], 0)]


class TestHoles:
    def test_a_refused_batch_leaves_a_hole_that_needs_a_new_session(self) -> None:
        queue, batches = filled(2, 2)
        send_all(queue)
        assert queue.failed(batches[0], InvalidBatch()) is Verdict.GIVE_UP
        queue.failed(batches[1], SequenceGap(expected=0))
        assert queue.needs_session
        queue.adopt(SECOND)
        queue.resume()
        assert send_all(queue) == [(batches[1], 0)]

    def test_what_is_in_doubt_before_a_hole_is_settled_in_the_old_session(self) -> None:
        queue, batches = filled(2, 2, 2)
        send_all(queue)
        queue.failed(batches[0], ConnectionLost())
        queue.failed(batches[1], InvalidBatch())
        queue.failed(batches[2], SequenceGap(expected=2))
        assert not queue.needs_session
        queue.resume()
        assert send_all(queue) == [(batches[0], 0)]
        queue.acknowledged(batches[0])
        assert queue.needs_session

    def test_a_gap_before_the_lowest_batch_needs_a_new_session(self) -> None:
        queue, batches = filled(2)
        send_all(queue)
        assert queue.failed(batches[0], SequenceGap(expected=0)) is Verdict.RETRY
        assert queue.needs_session

    def test_a_producer_that_is_fenced_stops(self) -> None:
        queue, batches = filled(1)
        send_all(queue)
        assert queue.failed(batches[0], ProducerFenced()) is Verdict.STOP


class TestExpiry:
    def test_a_batch_never_sent_leaves_no_hole(self) -> None:
        queue, batches = filled(1, 1)
        assert queue.expire(opened_by=0.0) == batches
        assert not queue.needs_session

    def test_what_is_in_doubt_behind_an_expired_batch_expires_with_it(self) -> None:
        queue = PartitionQueue(0, FIRST)
        batches = [batch(opened=0.0), batch(opened=5.0), batch(opened=6.0)]
        for each in batches[:2]:
            queue.append(each)
        send_all(queue)
        for each in batches[:2]:
            queue.failed(each, ConnectionLost())
        queue.append(batches[2])
        assert queue.expire(opened_by=1.0) == batches[:2]
        assert queue.needs_session
        assert list(queue.unacknowledged) == batches[2:]

    def test_what_is_certainly_not_stored_survives_an_expired_batch(self) -> None:
        queue = PartitionQueue(0, FIRST)
        batches = [batch(opened=0.0), batch(opened=5.0)]
        for each in batches:
            queue.append(each)
        send_all(queue)
        queue.failed(batches[0], Overloaded())
        queue.failed(batches[1], SequenceGap(expected=0))
        assert queue.expire(opened_by=1.0) == batches[:1]
        queue.adopt(SECOND)
        queue.resume()
        assert send_all(queue) == [(batches[1], 0)]

    @pytest.mark.parametrize("error", [None, ConnectionLost("gone")])
    def test_an_expired_batch_has_a_reason(self, error: QuiverError | None) -> None:
        queue, batches = filled(1)
        batches[0].last_error = error
        (expired,) = queue.expire(opened_by=0.0)
        assert expired.last_error is not None


class _Partition:
    """Stores what comes in sequence, once, for each session."""

    def __init__(self) -> None:
        self.expected: dict[int, int] = {}
        self.stored: list[PendingBatch] = []

    def publish(self, producer: int, sequence: int, each: PendingBatch) -> None:
        expected = self.expected.get(producer, 0)
        if sequence > expected:
            raise SequenceGap(expected=expected)
        if sequence == expected:
            self.stored.append(each)
            self.expected[producer] = sequence + each.count


class TestAnyHistory:
    @settings(max_examples=300, deadline=None)
    @given(seed=st.integers(0, 2**32), batches=st.integers(1, 30))
    def test_each_acknowledged_batch_is_stored_once_and_in_order(
        self, seed: int, batches: int
    ) -> None:
        """Requests and answers are lost at random; batches expire and are refused at random."""
        chance = random.Random(seed)
        queue, partition, sessions = PartitionQueue(0, FIRST), _Partition(), 1
        waiting = [batch(chance.randint(1, 5), opened=number) for number in range(batches)]
        everything, acknowledged, given_up = list(waiting), [], []
        now = 0.0
        while waiting or queue.unacknowledged:
            while waiting and chance.random() < 0.7:
                queue.append(waiting.pop(0))
            flying: list[tuple[PendingBatch, int, int]] = []
            while (each := queue.next_to_send()) is not None:
                stamp = queue.sent(each)
                assert stamp is not None
                flying.append((each, stamp.producer_id, stamp.sequence))
            breaks_at = chance.randrange(len(flying) + 1) if chance.random() < 0.4 else None
            answers: list[tuple[PendingBatch, QuiverError | None]] = []
            for place, (each, producer, sequence) in enumerate(flying):
                error: QuiverError | None = None
                if breaks_at is not None and place >= breaks_at:
                    error = ConnectionLost()
                elif chance.random() < 0.1:
                    error = Overloaded()
                elif chance.random() < 0.05 and not each.is_in_doubt:
                    error = InvalidBatch()
                else:
                    try:
                        partition.publish(producer, sequence, each)
                    except SequenceGap as gap:
                        error = gap
                    else:
                        if chance.random() < 0.15:
                            error = ConnectionLost()
                answers.append((each, error))
            chance.shuffle(answers)
            for each, error in answers:
                if error is None:
                    queue.acknowledged(each)
                    acknowledged.append(each)
                elif queue.failed(each, error) is Verdict.GIVE_UP:
                    given_up.append(each)
            now += chance.random() * 3
            given_up += queue.expire(now - 20)
            if queue.needs_session:
                sessions += 1
                queue.adopt(ProducerSession(ProducerId(sessions), ProducerEpoch(0)))
            queue.resume()
        stored = partition.stored
        assert len({id(each) for each in stored}) == len(stored), "nothing is stored twice"
        assert stored == sorted(stored, key=everything.index), "the order holds"
        assert {id(each) for each in acknowledged} <= {id(each) for each in stored}
        assert len(acknowledged) + len(given_up) == batches, "everything is settled"
