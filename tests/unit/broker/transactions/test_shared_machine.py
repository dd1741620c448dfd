"""Shared transactions: each number is committed once, with the parts that were named and no others."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from quiver.broker.transactions import shared_machine as module
from quiver.broker.transactions.machine import Records
from quiver.broker.transactions.names import UNUSED_US
from quiver.broker.transactions.records import (
    NamesForgotten,
    Outcome,
    SharedEnded,
    decode_record,
    encode_record,
)
from quiver.broker.transactions.shared import Part, SharedEnding
from quiver.broker.transactions.shared_machine import SharedTransactionMachine, decisions_in
from quiver.errors import (
    InvalidRequest,
    Overloaded,
    TransactionAborted,
    TransactionError,
    TransactionFenced,
    TransactionNotFound,
    TransactionTimedOut,
    TransactionTooLarge,
)
from quiver.model.ids import ProducerEpoch, ProducerId
from quiver.model.transaction import PARTICIPANTS_MAX, TransactionId, TransactionState
from quiver.model.transaction import transaction_id as id_of
from quiver.protocol import Participant
from tests.unit.broker.transactions.test_machine import abort, at, commit

NAME = "|sink|"
ONE, TWO, THREE = (id_of(ProducerId(n), ProducerEpoch(0)) for n in (8, 16, 24))
ORDERS, AUDIT = Participant("orders", 0), Participant("audit", 3)
TIMEOUT_S = 300


class Shared:
    """A machine with a name, and what it has written."""

    def __init__(self) -> None:
        self.machine = SharedTransactionMachine()
        self.log: Records = list(self.machine.begin_shared(NAME, "", ProducerId(8), 0, at(0)))

    def join(
        self, one: TransactionId, number: int = 0, seconds: float = 0, *reached: Participant
    ) -> bool:
        part = Part(
            transaction=one,
            name=NAME,
            number=number,
            timeout_us=at(TIMEOUT_S),
            participants=list(reached),
        )
        is_committed, records = self.machine.join_shared(part, at(seconds))
        self.log += records
        return is_committed

    def end(
        self,
        number: int,
        *parts: TransactionId,
        seconds: float = 0,
        reached: Iterable[Participant] = (),
        is_commit: bool = True,
        is_last: bool = False,
    ) -> Outcome:
        ending = SharedEnding(
            name=NAME,
            number=number,
            is_commit=is_commit,
            parts=list(parts),
            participants=list(reached),
            is_last=is_last,
        )
        outcome, records = self.machine.end_shared(ending, at(seconds))
        self.log += records
        return outcome

    def state(self, one: TransactionId) -> TransactionState:
        return self.machine.describe(one)

    def read_again(self, *, checkpoint: bool = False) -> None:
        """Go on as the next leader does, which reads the records or a checkpoint."""
        read = [self.machine.checkpoint()] if checkpoint else self.log
        self.machine = SharedTransactionMachine()
        for record in read:
            self.machine.apply(decode_record(encode_record(record)))


@pytest.fixture
def shared() -> Shared:
    return Shared()


def test_the_parts_that_are_named_count_and_the_others_do_not(shared: Shared) -> None:
    for one in (ONE, TWO, THREE):
        assert not shared.join(one)
    assert shared.end(0, ONE, THREE, reached=[ORDERS]) is Outcome.COMMITTED
    states = [shared.state(one) for one in (ONE, TWO, THREE)]
    assert states == ["committed", "aborted", "committed"]
    assert isinstance(shared.log[-1], SharedEnded), "it is one record"
    told = {one.transaction: one.participants for one in decisions_in(shared.log[-1])}
    assert told == {one: [ORDERS] for one in (ONE, TWO, THREE)}, "also those of the others"


def test_all_partitions_that_parts_told_of_hear_of_the_end(shared: Shared) -> None:
    shared.join(ONE, 0, 0, ORDERS)
    shared.join(TWO, 0, 0, AUDIT)
    shared.end(0, ONE)
    assert set(shared.machine.unfinished[TWO].left) == {ORDERS, AUDIT}
    shared.machine.confirm(ORDERS, [ONE, TWO])
    complete, _ = shared.machine.confirm(AUDIT, [ONE, TWO])
    assert sorted(complete) == [ONE, TWO]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_number_is_committed_once_over_a_restart(shared: Shared, checkpoint: bool) -> None:
    shared.join(ONE)
    shared.end(0, ONE)
    shared.read_again(checkpoint=checkpoint)
    assert shared.join(TWO), "whoever comes again is told that it is done"
    assert shared.end(0, TWO) is Outcome.COMMITTED
    assert shared.state(TWO) is TransactionState.UNKNOWN, "nothing of it was committed"
    assert not shared.join(THREE, 1)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_parts_are_known_after_a_restart(shared: Shared, checkpoint: bool) -> None:
    shared.join(ONE)
    shared.join(TWO)
    shared.read_again(checkpoint=checkpoint)
    states, _ = shared.machine.resolve([TWO], at(1))
    assert states[TWO] is TransactionState.OPEN
    assert shared.end(0, ONE, seconds=2) is Outcome.COMMITTED
    assert shared.state(TWO) is TransactionState.ABORTED


def test_a_higher_number_ends_what_is_open_of_the_lower(shared: Shared) -> None:
    shared.join(ONE)
    shared.join(TWO, 1)
    assert shared.state(ONE) is TransactionState.ABORTED
    assert shared.end(0, ONE) is Outcome.FENCED
    with pytest.raises(TransactionFenced):
        shared.join(THREE, 0)
    assert shared.end(1, TWO) is Outcome.COMMITTED


def test_a_commit_with_a_part_that_ended_commits_nothing(shared: Shared) -> None:
    shared.join(ONE)
    shared.join(TWO)
    outcome, _ = shared.machine.end(abort(TWO), at(1))
    assert outcome is Outcome.ABORTED
    assert shared.end(0, ONE, TWO) is Outcome.ABORTED
    assert shared.state(ONE) is TransactionState.OPEN
    assert shared.end(0, ONE) is Outcome.COMMITTED


def test_what_never_was_a_part_is_not_committed(shared: Shared) -> None:
    shared.join(ONE)
    assert shared.end(0, ONE, TWO) is Outcome.FENCED
    assert shared.end(0) is Outcome.FENCED
    assert shared.state(ONE) is TransactionState.OPEN


def test_a_part_alone_is_not_committed(shared: Shared) -> None:
    shared.join(ONE)
    with pytest.raises(InvalidRequest, match="part of a shared one"):
        shared.machine.end(commit(ONE), at(0))
    with pytest.raises(InvalidRequest, match="part of a shared one"):
        shared.machine.join(ONE, at(60), [], at(0))


def test_an_abort_ends_all_parts_and_the_number_can_be_tried_again(shared: Shared) -> None:
    shared.join(ONE)
    shared.join(TWO)
    assert shared.end(0, is_commit=False) is Outcome.ABORTED
    assert {shared.state(ONE), shared.state(TWO)} == {TransactionState.ABORTED}
    with pytest.raises(TransactionAborted):
        shared.join(ONE)
    shared.join(THREE)
    assert shared.end(0, THREE) is Outcome.COMMITTED
    assert shared.end(0, is_commit=False) is Outcome.COMMITTED, "it cannot be aborted any more"


def test_one_client_that_writes_keeps_all_parts_open(shared: Shared) -> None:
    shared.join(ONE)
    for seconds in range(0, 3 * TIMEOUT_S, 100):
        shared.join(TWO, 0, seconds)
        shared.log += shared.machine.tick(at(seconds))
    assert shared.end(0, ONE, TWO, seconds=seconds) is Outcome.COMMITTED


def test_when_nobody_was_heard_of_for_the_time_limit_all_parts_are_aborted(shared: Shared) -> None:
    shared.join(ONE)
    shared.join(TWO, 0, 100)
    assert not shared.machine.tick(at(TIMEOUT_S + 99))
    shared.log += shared.machine.tick(at(TIMEOUT_S + 100))
    assert {shared.state(ONE), shared.state(TWO)} == {TransactionState.ABORTED}
    assert shared.end(0, ONE, TWO, seconds=TIMEOUT_S + 100) is Outcome.TIMED_OUT
    with pytest.raises(TransactionTimedOut):
        shared.join(ONE, 0, TIMEOUT_S + 101)


def test_a_commit_past_the_time_limit_is_refused_before_the_tick(shared: Shared) -> None:
    shared.join(ONE)
    assert shared.end(0, ONE, seconds=TIMEOUT_S) is Outcome.TIMED_OUT
    assert shared.state(ONE) is TransactionState.ABORTED


def test_parts_of_another_run_have_their_own_time_limit(shared: Shared) -> None:
    shared.join(ONE)
    shared.join(TWO, 0, TIMEOUT_S + 1)  # the batch is written again, when nobody had been there
    shared.log += shared.machine.tick(at(TIMEOUT_S + 2))
    assert shared.state(ONE) is TransactionState.ABORTED
    assert shared.end(0, TWO, seconds=TIMEOUT_S + 3) is Outcome.COMMITTED


def test_a_last_one_leaves_no_name_and_its_outcome_is_known(shared: Shared) -> None:
    shared.join(ONE)
    assert shared.end(0, ONE, is_last=True) is Outcome.COMMITTED
    assert shared.end(0, ONE, is_last=True) is Outcome.COMMITTED, "its answer was lost"
    shared.read_again(checkpoint=True)
    begin = shared.machine.begin_shared
    assert begin(NAME, "", ProducerId(16), 0, at(1)) == [], "a late client does not revive it"
    with pytest.raises(TransactionNotFound):
        shared.join(TWO, 0, 1)
    saved = shared.machine.checkpoint()
    assert (saved.names, saved.shared) == ({}, {})
    shared.machine.tick(at(1000))
    assert shared.machine.checkpoint().ended_names == {}


def test_a_last_one_that_nobody_wrote_leaves_no_name_either(shared: Shared) -> None:
    assert shared.end(0, is_commit=False, is_last=True) is Outcome.ABORTED
    shared.read_again()
    assert shared.machine.checkpoint().names == {}


def test_a_name_in_use_is_not_forgotten_and_one_that_is_takes_its_numbers_along() -> None:
    shared = Shared()
    shared.join(ONE, 7)
    shared.end(7, ONE)
    month_s = UNUSED_US / 1_000_000
    begin = shared.machine.begin_shared
    shared.join(TWO, 8, month_s - 1)
    assert shared.machine.end(abort(TWO), at(month_s - 1))
    records = begin("|other|", "", ProducerId(32), 2, at(month_s + 1))
    assert [type(one).__name__ for one in records] == ["Named"]
    records = begin("|third|", "", ProducerId(40), 2, at(2 * month_s + 2))
    assert isinstance(records[0], NamesForgotten)
    assert NAME in records[0].names
    assert NAME not in shared.machine.checkpoint().shared


def test_what_a_checkpoint_saves_is_what_was_there(shared: Shared) -> None:
    shared.join(ONE, 3)
    shared.end(3, ONE)
    shared.join(TWO, 4)
    before = shared.machine.checkpoint()
    shared.read_again(checkpoint=True)
    assert shared.machine.checkpoint() == before
    assert before.joined == [], "parts are saved with what they are part of"


def test_bounds(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OPEN_MAX", 0)
    with pytest.raises(Overloaded):
        shared.join(ONE)
    monkeypatch.setattr(module, "OPEN_MAX", 10)
    monkeypatch.setattr(module, "PARTS_MAX", 1)
    shared.join(ONE)
    with pytest.raises(TransactionTooLarge):
        shared.join(TWO)
    shared.join(ONE)
    many = [Participant("t", n) for n in range(PARTICIPANTS_MAX + 1)]
    with pytest.raises(TransactionTooLarge):
        shared.end(0, ONE, reached=many)
    with pytest.raises(TransactionTooLarge):
        shared.join(ONE, 0, 0, *many)
    monkeypatch.setattr(module, "UNTOLD_MAX", 1)
    with pytest.raises(TransactionTooLarge):
        shared.end(0, ONE, reached=[ORDERS, AUDIT])
    assert shared.state(ONE) is TransactionState.OPEN


def test_a_committed_part_cannot_be_used_again(shared: Shared) -> None:
    shared.join(ONE)
    shared.end(0, ONE)
    with pytest.raises(TransactionError, match="is committed"):
        shared.join(ONE, 1)
