"""Messages that wait for a transaction: what ends that, and what does not."""

from __future__ import annotations

import struct

import pytest
from pyroaring import BitMap64

from quiver.broker.delivery.machine.machine import DeliveryMachine
from quiver.broker.delivery.machine.outcome import ACKNOWLEDGED, OutcomeSearch
from quiver.broker.delivery.machine.pending_acks import PendingAck, PendingAcks
from quiver.broker.delivery.machine.records import (
    EXPIRED,
    PURGED,
    AnyRecord,
    Finished,
    Held,
    Returned,
    StateEntry,
    decode_entries,
    encode_entries,
)
from quiver.broker.delivery.machine.session_view import SessionView
from quiver.broker.delivery.machine.snapshot import decode_snapshot, encode_snapshot
from quiver.model.ids import Microseconds, Offset
from quiver.model.subscription import Backoff
from quiver.model.transaction import TransactionId
from tests.unit.broker.delivery.machine.test_machine import facts
from tests.unit.broker.delivery.small_deliveries import (
    offsets,
    publish,
    seconds,
    subscription,
    take,
)

ONE, OTHER = TransactionId(7), TransactionId(8)


def hold(
    machine: DeliveryMachine,
    *places: int,
    lease: int = 1,
    transaction: TransactionId = ONE,
    at: float = 0,
) -> list[int]:
    """Which of them were held."""
    held, _ = machine.hold(lease, offsets(*places), transaction, seconds(at))
    return list(held)


def holding(count: int, **settings: object) -> DeliveryMachine:
    """A machine with so many messages, all of which wait for a transaction."""
    machine = subscription(**settings)
    publish(machine, count)
    take(machine, count)
    assert hold(machine, *range(count)) == list(range(count))
    return machine


def test_what_is_held_is_leased_to_nobody_and_nothing_is_ever_due() -> None:
    machine = holding(2, visibility="5s")
    assert machine.view.next_event() is None
    assert machine.tick(seconds(1000)) == []
    assert machine.view.state_of(Offset(0)) == "leased"
    assert machine.view.holder(Offset(0)) is None
    assert machine.view.consumers == set()
    assert take(machine, 9, at=1000, lease=2) == []


def test_what_is_held_counts_as_pending() -> None:
    machine = holding(2)
    publish(machine, 1)
    view = machine.view
    assert (view.floor, view.pending_count, view.pending_below(Offset(2))) == (0, 3, 2)
    assert view.depth.leased == 2
    assert view.in_state("leased") == offsets(0, 1)
    assert not view.has_passed(Offset(1)), "a split waits for it"
    assert view.oldest_time == seconds(0)


def test_a_lease_that_has_ended_cannot_be_held() -> None:
    machine = subscription(visibility="5s", backoff=Backoff(min=0))
    publish(machine, 3)
    take(machine, 3)
    machine.ack(1, offsets(0))
    machine.tick(seconds(5))
    take(machine, 9, at=5, lease=2)
    assert hold(machine, 0, 1, 2, at=6) == []
    assert hold(machine, 1, 2, lease=2, at=6) == [1, 2]
    assert hold(machine, 1, 5, 9, lease=3) == []


def test_what_one_transaction_holds_another_cannot_have() -> None:
    machine = subscription()
    publish(machine, 2)
    take(machine, 2)
    assert hold(machine, 0) == [0]
    assert hold(machine, 0, 1, transaction=OTHER) == [1]
    assert hold(machine, 0, 1) == [0]
    machine.close(OTHER, is_committed=True)
    assert machine.view.state_of(Offset(0)) == "leased"
    assert machine.view.state_of(Offset(1)) == "finished"


def test_a_hold_that_is_repeated_is_confirmed_and_writes_nothing() -> None:
    machine = holding(2)
    assert machine.hold(1, offsets(0, 1), ONE, seconds(9)) == (offsets(0, 1), [])


def test_a_commit_finishes_under_the_lease_and_only_once() -> None:
    machine = holding(2)
    acked, records = machine.close(ONE, is_committed=True)
    assert acked == offsets(0, 1)
    assert records == [Finished(offsets(0, 1).serialize(), 1)]
    assert machine.view.floor == 2
    for is_committed in (True, False):
        assert machine.close(ONE, is_committed=is_committed) == (BitMap64(), [])
    assert machine.ack(1, offsets(0))[0] == offsets(0), "it was acknowledged under this lease"
    assert hold(machine, 0) == []


def test_an_abort_returns_at_once_uncounted_and_not_suspect() -> None:
    machine = holding(2, max_deliveries=1)
    acked, records = machine.close(ONE, is_committed=False)
    assert acked == BitMap64()
    (returned,) = records
    assert isinstance(returned, Returned)
    assert (returned.counted, returned.is_suspect) == (False, False)
    for lease in (2, 3, 4):
        assert take(machine, 2, lease=lease) == [0, 1]
        assert machine.view.deliveries(Offset(0)) == 1
        hold(machine, 0, 1, lease=lease)
        machine.close(ONE, is_committed=False)
    assert hold(machine, 0) == [], "the lease ended with the transaction"


def test_what_expired_while_it_was_held_is_not_delivered_after_an_abort() -> None:
    machine = subscription()
    publish(machine, 2, expires=[10, None])
    take(machine, 2)
    hold(machine, 0, 1)
    assert machine.tick(seconds(10)) == []
    assert machine.view.state_of(Offset(0)) == "leased", "a commit still counts"
    _, records = machine.close(ONE, is_committed=False)
    assert [getattr(one, "reason", None) for one in records] == [EXPIRED, None]
    assert take(machine, 9, at=11, lease=2) == [1]


def test_what_expired_while_it_was_held_is_acknowledged_by_a_commit() -> None:
    machine = subscription()
    publish(machine, 1, expires=[10])
    take(machine, 1)
    hold(machine, 0)
    machine.tick(seconds(10))
    assert machine.close(ONE, is_committed=True)[0] == offsets(0)
    assert machine.tick(seconds(20)) == []


def test_nothing_that_a_consumer_says_changes_what_is_held() -> None:
    machine = holding(1)
    one = offsets(0)
    assert machine.ack(1, one) == (BitMap64(), [])
    assert machine.nack(1, one, seconds(1)) == (BitMap64(), [])
    assert machine.reject(1, one) == (BitMap64(), [])
    assert machine.extend(1, one, seconds(9)) == (BitMap64(), [])
    assert machine.requeue(1, one, seconds(1)) == []
    assert machine.release("ann", seconds(1)) == []
    assert machine.end_session(1, seconds(1), is_silent=True, reason="gone") == []
    assert machine.cut_sessions(seconds(2)) == []
    assert machine.drop(one, PURGED) == []
    assert machine.view.state_of(Offset(0)) == "leased"


def test_a_consumer_with_a_session_has_no_more_in_hand_what_is_held() -> None:
    machine = subscription()
    publish(machine, 2)
    machine.reserve(seconds(0), limit=2, lease_id=1, consumer="ann")
    machine.start(1, offsets(0, 1), seconds(0), consumer="ann", visibility_us=5_000_000)
    hold(machine, 0)
    view = SessionView(machine.state)
    assert [part.offsets for part in view.lease(1)] == [offsets(1)]
    machine.end_session(1, seconds(1), is_silent=True, reason="gone")
    assert machine.view.state_of(Offset(0)) == "leased"
    assert machine.view.state_of(Offset(1)) == "ready"
    assert machine.state.suspects == offsets(1)
    assert not view.has_messages("ann")


def test_a_suspect_that_its_consumer_acknowledges_is_none_any_more() -> None:
    machine = subscription()
    publish(machine, 1)
    machine.reserve(seconds(0), limit=1, lease_id=1, consumer="ann")
    machine.start(1, offsets(0), seconds(0), consumer="ann", visibility_us=5_000_000)
    machine.end_session(1, seconds(1), is_silent=True, reason="gone")
    take(machine, 1, at=2, lease=2)
    hold(machine, 0, lease=2)
    machine.close(ONE, is_committed=False)
    assert machine.state.suspects == BitMap64()


def test_at_most_once_leaves_nothing_to_hold() -> None:
    machine = subscription(guarantee="at-most-once")
    publish(machine, 1)
    take(machine, 1)
    assert hold(machine, 0) == []


def test_the_next_of_a_key_waits_until_the_transaction_is_committed() -> None:
    machine = subscription(ordering="key", visibility="5s")
    publish(machine, 3, key=[b"a", b"a", b"b"])
    take(machine, 9)
    hold(machine, 0, 2)
    assert take(machine, 9, at=60, lease=2) == []
    machine.close(ONE, is_committed=True)
    assert take(machine, 9, at=60, lease=3) == [1]


def test_what_an_abort_returns_leads_its_key_again() -> None:
    machine = subscription(ordering="key")
    publish(machine, 3, key=[b"a", b"a", b"b"])
    take(machine, 9)
    hold(machine, 0, 2)
    machine.close(ONE, is_committed=False)
    assert take(machine, 9, lease=2) == [0, 2]


def test_in_strict_order_nothing_overtakes_what_is_held() -> None:
    machine = holding(2, ordering="partition")
    publish(machine, 1)
    assert machine.view.ready_count == 0
    assert take(machine, 9, lease=2) == []
    machine.close(ONE, is_committed=False)
    assert take(machine, 9, lease=3) == [0, 1, 2]


def test_a_seek_forgets_what_is_held_and_a_commit_of_it_changes_nothing() -> None:
    machine = holding(2)
    machine.seek(Offset(0))
    publish(machine, 2)
    assert machine.state.held_transactions(seconds(9)) == set()
    assert machine.close(ONE, is_committed=True) == (BitMap64(), [])
    assert hold(machine, 0, 1) == []
    assert take(machine, 9, lease=2) == [0, 1]


def test_what_is_held_is_purged_or_lost_like_what_is_leased() -> None:
    machine = holding(4)
    machine.give_up(offsets(1), PURGED)
    assert machine.view.state_of(Offset(1)) == "finished"
    machine.skip_to(Offset(1))
    assert machine.state.forget_from(Offset(3)) is None
    _, records = machine.close(ONE, is_committed=False)
    assert [list(record.bitmap) for record in records] == [[2]]
    assert machine.state.held_transactions(seconds(9)) == set()


def test_transactions_are_asked_about_once_they_are_held_for_long_enough() -> None:
    machine = subscription()
    publish(machine, 3)
    take(machine, 3)
    hold(machine, 0, at=1)
    hold(machine, 1, at=5, transaction=OTHER)
    hold(machine, 2, at=9)
    assert machine.state.held_transactions(seconds(1)) == set()
    assert machine.state.held_transactions(seconds(2)) == {ONE}
    assert machine.state.held_transactions(seconds(6)) == {ONE, OTHER}
    machine.close(ONE, is_committed=True)
    assert machine.state.held_transactions(seconds(100)) == {OTHER}


# ---------------------------------------------------------------------- over a restart


def test_what_is_held_is_the_same_after_a_restart_from_records_or_from_a_snapshot() -> None:
    machine = subscription(ordering="key")
    publish(machine, 3, key=[b"a", b"a", b"b"])
    records: list[AnyRecord] = list(machine.take(seconds(0), limit=9, lease_id=1)[1])
    records += machine.hold(1, offsets(0, 2), ONE, seconds(1))[1]
    stored = decode_entries(encode_entries([StateEntry(1, records)]))[0].records
    assert stored == records
    replayed = subscription(ordering="key")
    publish(replayed, 3, key=[b"a", b"a", b"b"])
    for record in stored:
        replayed.state.apply(record)
    assert facts(replayed) == facts(machine)
    snapshot = decode_snapshot(encode_snapshot(machine.state.snapshot()))
    assert snapshot is not None
    restored = subscription(ordering="key")
    restored.state.restore(snapshot)
    assert restored.state.held_transactions(seconds(2)) == {ONE}
    assert restored.view.in_state("leased") == offsets(0, 2)


def test_an_earlier_quiver_refuses_a_snapshot_in_which_messages_wait() -> None:
    """It would take them for finished."""
    machine = holding(1)
    (version,) = struct.unpack_from("<I", encode_snapshot(machine.state.snapshot()), 4)
    assert version == 2
    machine.close(ONE, is_committed=True)
    (version,) = struct.unpack_from("<I", encode_snapshot(machine.state.snapshot()), 4)
    assert version == 1


def test_a_message_that_a_commit_finished_was_acknowledged() -> None:
    search = OutcomeSearch(Offset(0))
    data = offsets(0).serialize()
    for record in (Held(data, 1, ONE, seconds(1)), Finished(data, 1)):
        search.apply(record, seconds(2))
    assert search.outcome is not None
    assert search.outcome.state == ACKNOWLEDGED


# ---------------------------------------------------------------------- the table of them


def part(transaction: TransactionId, lease_id: int, *places: int) -> PendingAck:
    return PendingAck(
        transaction=transaction, lease_id=lease_id, since=Microseconds(0), offsets=offsets(*places)
    )


def test_no_message_waits_for_two_transactions() -> None:
    acks = PendingAcks()
    acks.add(part(ONE, 1, 0, 1))
    with pytest.raises(AssertionError, match="two transactions"):
        acks.add(part(OTHER, 2, 1))


def test_nothing_is_left_of_a_transaction_whose_messages_are_all_released() -> None:
    acks = PendingAcks()
    acks.add(part(ONE, 1, 0, 1))
    acks.add(part(ONE, 2, 2))
    acks.add(part(OTHER, 1, 3))
    acks.release(1, offsets(0, 1, 2, 3))
    assert [(one.transaction, one.lease_id) for one in acks] == [(ONE, 2)]
    assert acks.members == offsets(2), "that was taken under another lease"
    acks.release(2, offsets(2))
    assert (list(acks), acks.of(ONE), acks._of_lease) == ([], [], {})
    assert not acks.waits_for([ONE, OTHER])
