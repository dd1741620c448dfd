"""The machine of a coordinator: what it decides, and that it decides once."""

from __future__ import annotations

import pytest

from quiver.broker.transactions import machine as module
from quiver.broker.transactions.machine import (
    TIMEOUT_US,
    Ending,
    Records,
    TransactionMachine,
)
from quiver.broker.transactions.names import UNUSED_US
from quiver.broker.transactions.outcomes import KEPT_US, WINDOW_US
from quiver.broker.transactions.records import (
    Completed,
    Decided,
    Joined,
    NamesForgotten,
    Outcome,
    decode_record,
    encode_record,
)
from quiver.errors import (
    Overloaded,
    QuotaExceeded,
    TransactionAborted,
    TransactionError,
    TransactionFenced,
    TransactionNotFound,
    TransactionTooLarge,
)
from quiver.model.ids import Microseconds, ProducerEpoch, ProducerId
from quiver.model.transaction import (
    PARTICIPANTS_MAX,
    TransactionId,
    TransactionState,
    transaction_id,
)
from quiver.protocol import Participant

A, B = ProducerId(8), ProducerId(16)
ORDERS, AUDIT = Participant("orders", 0), Participant("audit", 3)


def transaction(producer: ProducerId = A, epoch: int = 0) -> TransactionId:
    return transaction_id(producer, ProducerEpoch(epoch))


def at(seconds: float) -> Microseconds:
    return Microseconds(round(seconds * 1_000_000))


def commit(
    one: TransactionId, *participants: Participant, age_s: float = 0, **given: object
) -> Ending:
    return Ending(
        transaction=one,
        is_commit=True,
        participants=list(participants),
        age_us=at(age_s),
        **given,  # type: ignore[arg-type]
    )


def abort(one: TransactionId, *participants: Participant) -> Ending:
    return Ending(transaction=one, is_commit=False, participants=list(participants))


def again(records: Records) -> TransactionMachine:
    """A machine that has read these records, as the next leader does."""
    machine = TransactionMachine()
    for record in records:
        machine.apply(decode_record(encode_record(record)))
    return machine


# ---------------------------------------------------------------------- decisions


def test_a_commit_is_one_record_with_its_participants() -> None:
    machine = TransactionMachine()
    outcome, records = machine.end(commit(transaction(), ORDERS, AUDIT), at(1))
    assert outcome is Outcome.COMMITTED
    assert records == [Decided(transaction(), Outcome.COMMITTED, [AUDIT, ORDERS], at(1))]


def test_a_repeated_commit_gives_the_same_answer_and_writes_nothing() -> None:
    machine = TransactionMachine()
    machine.end(commit(transaction(), ORDERS), at(1))
    assert machine.end(commit(transaction(), ORDERS, age_s=300), at(300)) == (
        Outcome.COMMITTED,
        [],
    )


def test_a_commit_of_an_aborted_one_stays_aborted() -> None:
    machine = TransactionMachine()
    machine.end(abort(transaction()), at(1))
    outcome, records = machine.end(commit(transaction()), at(2))
    assert (outcome, records) == (Outcome.ABORTED, [])
    assert isinstance(outcome.error(), TransactionAborted)


def test_an_abort_of_a_committed_one_changes_nothing() -> None:
    machine = TransactionMachine()
    machine.end(commit(transaction()), at(1))
    assert machine.end(abort(transaction()), at(2)) == (Outcome.COMMITTED, [])


@pytest.mark.parametrize("age_s", [60, 61, 3599])
def test_a_commit_after_the_clients_time_limit_is_timed_out(age_s: float) -> None:
    outcome, records = TransactionMachine().end(commit(transaction(), age_s=age_s), at(1))
    assert outcome is Outcome.TIMED_OUT
    assert isinstance(records[0], Decided)


def test_a_commit_within_a_longer_limit_is_committed() -> None:
    ending = commit(transaction(), age_s=800, timeout_us=at(900))
    assert TransactionMachine().end(ending, at(1))[0] is Outcome.COMMITTED


def test_of_a_transaction_of_more_than_an_hour_nothing_is_decided() -> None:
    """It may have been committed: the outcome is forgotten."""
    machine = TransactionMachine()
    with pytest.raises(TransactionNotFound):
        machine.end(commit(transaction(), age_s=3600), at(1))
    assert machine.describe(transaction()) is TransactionState.UNKNOWN


def test_a_commit_past_the_deadline_that_is_known_here_is_timed_out() -> None:
    machine = TransactionMachine()
    machine.resolve([transaction()], at(10))
    outcome, _ = machine.end(commit(transaction(), age_s=1), at(70))
    assert outcome is Outcome.TIMED_OUT


def test_a_commit_of_too_many_partitions_is_refused_and_can_be_aborted() -> None:
    machine = TransactionMachine()
    many = [Participant("orders", index) for index in range(PARTICIPANTS_MAX + 1)]
    with pytest.raises(TransactionTooLarge):
        machine.end(commit(transaction(), *many), at(1))
    assert machine.describe(transaction()) is TransactionState.UNKNOWN
    outcome, (record,) = machine.end(abort(transaction(), *many), at(1))
    assert outcome is Outcome.ABORTED
    assert isinstance(record, Decided)
    assert len(record.participants) == PARTICIPANTS_MAX


def test_what_joined_counts_to_the_participants() -> None:
    machine = TransactionMachine()
    machine.join(transaction(), TIMEOUT_US, [ORDERS], at(1))
    _, (record,) = machine.end(commit(transaction(), AUDIT), at(2))
    assert isinstance(record, Decided)
    assert record.participants == [AUDIT, ORDERS]


def test_too_many_that_wait_for_partitions_hold_up_new_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "UNTOLD_MAX", 2)
    machine = TransactionMachine()
    _, records = machine.end(commit(transaction(), ORDERS, AUDIT), at(1))
    for one in (machine, again(records), again([machine.checkpoint()])):
        with pytest.raises(Overloaded):
            one.end(commit(transaction(epoch=1), ORDERS), at(1))
        for _ in range(2):
            one.confirm(ORDERS, [transaction()])
        assert one.end(commit(transaction(epoch=1), ORDERS), at(1))[0] is Outcome.COMMITTED
        with pytest.raises(Overloaded):
            one.end(commit(transaction(epoch=2), ORDERS), at(1))


# ---------------------------------------------------------------------- time


def test_a_transaction_that_nobody_ends_is_aborted_at_its_limit() -> None:
    machine = TransactionMachine()
    states, records = machine.resolve([transaction()], at(10))
    assert (states, records) == ({transaction(): TransactionState.OPEN}, [])
    assert machine.tick(at(69.9)) == []
    assert machine.tick(at(70)) == [Decided(transaction(), Outcome.TIMED_OUT, [], at(70))]
    assert machine.resolve([transaction()], at(71))[0] == {transaction(): TransactionState.ABORTED}


def test_to_ask_again_does_not_extend_the_limit() -> None:
    machine = TransactionMachine()
    for second in range(10, 70):
        machine.resolve([transaction()], at(second))
    assert len(machine.tick(at(70))) == 1


def test_a_longer_limit_is_written_down_and_outlives_the_coordinator() -> None:
    machine = TransactionMachine()
    assert machine.join(transaction(), TIMEOUT_US, [], at(1)) == []
    records = machine.join(transaction(), at(900), [], at(2))
    assert records == [Joined(transaction(), at(1), at(900))]
    assert machine.join(transaction(), at(900), [], at(3)) == []
    next_one = again(records)
    assert next_one.tick(at(900)) == []
    assert len(next_one.tick(at(901))) == 1


def test_a_clock_that_was_ahead_holds_nothing_open_for_longer() -> None:
    machine = TransactionMachine()
    machine.resolve([transaction()], at(1_000_000))
    assert machine.tick(at(10)) == []
    assert len(machine.tick(at(70))) == 1


def test_a_transaction_that_has_ended_cannot_be_joined() -> None:
    machine = TransactionMachine()
    machine.end(commit(transaction()), at(1))
    machine.end(abort(transaction(epoch=1)), at(1))
    with pytest.raises(TransactionError, match="committed"):
        machine.join(transaction(), TIMEOUT_US, [], at(2))
    with pytest.raises(TransactionAborted):
        machine.join(transaction(epoch=1), TIMEOUT_US, [], at(2))


def test_no_more_are_known_as_open_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OPEN_MAX", 1)
    machine = TransactionMachine()
    machine.join(transaction(), TIMEOUT_US, [], at(1))
    with pytest.raises(Overloaded):
        machine.join(transaction(epoch=1), TIMEOUT_US, [], at(1))
    states, _ = machine.resolve([transaction(epoch=2)], at(1))
    assert states == {transaction(epoch=2): TransactionState.OPEN}
    assert len(machine.open) == 1


# ---------------------------------------------------------------------- names


def test_whoever_begins_under_a_name_fences_the_predecessor() -> None:
    machine = TransactionMachine()
    machine.begin("|billing", "", A, 0, at(1))
    machine.begin("|billing", "", B, 0, at(2))
    fenced, _ = machine.end(commit(transaction(A), name="|billing"), at(3))
    assert fenced is Outcome.FENCED
    assert isinstance(fenced.error(), TransactionFenced)
    current, _ = machine.end(commit(transaction(B), name="|billing"), at(3))
    assert current is Outcome.COMMITTED


def test_a_name_that_is_left_out_does_not_help_the_fenced_one() -> None:
    machine = TransactionMachine()
    machine.begin("|billing", "", A, 0, at(1))
    machine.begin("|billing", "", B, 0, at(2))
    assert machine.end(commit(transaction(A)), at(3))[0] is Outcome.FENCED


def test_a_predecessor_is_fenced_also_after_the_hour() -> None:
    machine = TransactionMachine()
    machine.begin("|billing", "", A, 0, at(1))
    machine.begin("|billing", "", B, 0, at(2))
    outcome, _ = machine.end(commit(transaction(A), name="|billing"), at(100_000))
    assert outcome is Outcome.FENCED


def test_what_the_predecessor_has_open_is_aborted_at_once() -> None:
    machine = TransactionMachine()
    machine.begin("|billing", "", A, 0, at(1))
    machine.join(transaction(A), TIMEOUT_US, [ORDERS], at(1))
    records = machine.begin("|billing", "", B, 0, at(2))
    assert records[-1] == Decided(transaction(A), Outcome.FENCED, [ORDERS], at(2))


def test_an_unknown_transaction_of_a_fenced_producer_is_aborted_when_asked_for() -> None:
    machine = TransactionMachine()
    machine.begin("|billing", "", A, 0, at(1))
    machine.begin("|billing", "", B, 0, at(2))
    states, records = machine.resolve([transaction(A)], at(3))
    assert states == {transaction(A): TransactionState.ABORTED}
    assert records == [Decided(transaction(A), Outcome.FENCED, [], at(3))]


def test_a_commit_before_the_successor_came_stands() -> None:
    machine = TransactionMachine()
    machine.begin("|billing", "", A, 0, at(1))
    machine.end(commit(transaction(A), name="|billing"), at(2))
    machine.begin("|billing", "", B, 0, at(3))
    assert machine.end(commit(transaction(A), name="|billing"), at(4))[0] is Outcome.COMMITTED


def test_an_owner_has_a_bounded_number_of_names() -> None:
    machine = TransactionMachine()
    machine.begin("ann|one", "ann", A, 1, at(1))
    with pytest.raises(QuotaExceeded):
        machine.begin("ann|two", "ann", B, 1, at(2))
    machine.begin("ann|one", "ann", B, 1, at(2))
    machine.begin("bob|one", "bob", ProducerId(24), 1, at(2))


def test_a_name_that_was_not_used_for_a_month_makes_room() -> None:
    machine = TransactionMachine()
    machine.begin("ann|one", "ann", A, 1, at(1))
    later = Microseconds(at(2) + UNUSED_US)
    forgotten, _ = machine.begin("ann|two", "ann", B, 1, later)
    assert forgotten == NamesForgotten(["ann|one"])


def test_a_name_is_used_by_its_transactions() -> None:
    machine = TransactionMachine()
    machine.begin("ann|one", "ann", A, 1, at(1))
    machine.end(commit(transaction(A), name="ann|one"), Microseconds(UNUSED_US))
    with pytest.raises(QuotaExceeded):
        machine.begin("ann|two", "ann", B, 1, Microseconds(at(2) + UNUSED_US))


# ---------------------------------------------------------------------- participants


def test_a_transaction_is_complete_when_all_participants_have_confirmed() -> None:
    machine = TransactionMachine()
    machine.end(commit(transaction(), ORDERS, AUDIT), at(1))
    assert machine.confirm(ORDERS, [transaction()]) == ([], [])
    assert machine.confirm(ORDERS, [transaction()]) == ([], [])
    complete, records = machine.confirm(AUDIT, [transaction()])
    assert complete == [transaction()]
    assert records == [Completed([transaction()])]
    assert machine.unfinished == {}


def test_a_transaction_is_shown_when_the_readers_of_all_participants_see_it() -> None:
    machine = TransactionMachine()
    machine.end(commit(transaction(), ORDERS, AUDIT), at(1))
    assert machine.show(ORDERS, [transaction()]) == []
    assert machine.show(ORDERS, [transaction()]) == []
    assert not machine.is_shown(transaction())
    assert machine.show(AUDIT, [transaction(), transaction(epoch=1)]) == [transaction()]
    assert machine.is_shown(transaction())
    [left] = machine.undelivered()  # it is durable with none of them
    assert left.participants == [AUDIT, ORDERS]


def test_the_next_leader_goes_on_with_what_is_not_complete() -> None:
    machine = TransactionMachine()
    _, records = machine.end(commit(transaction(), ORDERS, AUDIT), at(1))
    _, others = machine.end(commit(transaction(epoch=1), ORDERS), at(1))
    machine.confirm(AUDIT, [transaction()])
    _, complete = machine.confirm(ORDERS, [transaction(epoch=1)])
    next_one = again(records + others + complete)
    assert {one: unfinished.left for one, unfinished in next_one.unfinished.items()} == {
        transaction(): {ORDERS, AUDIT}
    }


# ---------------------------------------------------------------------- memory


def test_an_outcome_is_known_for_an_hour_and_then_forgotten() -> None:
    machine = TransactionMachine()
    machine.end(commit(transaction()), at(1))
    machine.tick(Microseconds(at(1) + KEPT_US))
    assert machine.describe(transaction()) is TransactionState.COMMITTED
    machine.tick(Microseconds(at(1) + KEPT_US + WINDOW_US))
    assert machine.describe(transaction()) is TransactionState.UNKNOWN


def test_what_is_not_complete_is_not_forgotten() -> None:
    machine = TransactionMachine()
    machine.end(commit(transaction(), ORDERS), at(1))
    machine.tick(at(100_000))
    assert machine.describe(transaction()) is TransactionState.COMMITTED


def test_a_checkpoint_stands_for_all_records_before_it() -> None:
    machine = TransactionMachine()
    machine.begin("|billing", "", A, 0, at(1))
    machine.begin("|billing", "", B, 0, at(2))
    machine.join(transaction(B, 7), at(900), [], at(2))
    machine.end(commit(transaction(B), ORDERS, name="|billing"), at(3))
    machine.end(commit(transaction(B, 1), name="|billing"), at(3))
    machine.end(abort(transaction(B, 2)), at(4))
    machine.end(commit(transaction(B, 3), age_s=70), at(4))
    saved = machine.checkpoint()
    next_one = again([saved])
    assert next_one.checkpoint() == saved
    for epoch, outcome in enumerate(
        [Outcome.COMMITTED, Outcome.COMMITTED, Outcome.ABORTED, Outcome.TIMED_OUT]
    ):
        assert next_one.outcome(transaction(B, epoch)) is outcome
    assert next_one.end(commit(transaction(A)), at(5))[0] is Outcome.FENCED
    assert next_one.unfinished[transaction(B)].left == {ORDERS}
    assert next_one.describe(transaction(B, 7)) is TransactionState.OPEN


def test_the_first_of_two_decisions_in_the_log_counts() -> None:
    first = Decided(transaction(), Outcome.COMMITTED, [], at(1))
    second = Decided(transaction(), Outcome.TIMED_OUT, [], Microseconds(WINDOW_US))
    assert again([first, second]).outcome(transaction()) is Outcome.COMMITTED
