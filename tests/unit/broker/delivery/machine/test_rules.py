"""Rules of delivery, one by one: each was broken once, or is easily broken."""

from __future__ import annotations

import pytest

from quiver.broker.delivery.machine.jitter import jittered_us
from quiver.broker.delivery.machine.records import (
    CANCELLED,
    AnyRecord,
    DeadLetterPending,
    Finished,
    Leased,
    Returned,
)
from quiver.errors import InvalidSetting
from quiver.model.ids import Offset
from quiver.model.subscription import Backoff, Guarantee, Ordering, SubscriptionSettings
from tests.unit.broker.delivery.small_deliveries import (
    SECOND,
    offsets,
    publish,
    seconds,
    subscription,
    take,
)


def kinds(records: list[AnyRecord]) -> list[type]:
    return [type(record) for record in records]


# ---------------------------------------------------------------------- expiry


def test_what_expired_in_its_lease_is_not_delivered_again_when_its_consumer_leaves() -> None:
    machine = subscription()
    publish(machine, 1, expires=[10])
    take(machine, 1)
    machine.tick(seconds(10))
    assert kinds(machine.release("ann", seconds(11))) == [Finished]
    assert take(machine, 1, at=12) == []


def test_a_take_never_gives_what_has_expired_even_if_nobody_ticked() -> None:
    machine = subscription()
    publish(machine, 2, expires=[10, None])
    assert take(machine, 2, at=10) == [1]


def test_what_expires_and_lapses_in_the_same_moment_is_finished_not_condemned() -> None:
    machine = subscription(max_deliveries=1, visibility="10s")
    publish(machine, 1, expires=[10])
    take(machine, 1)
    assert kinds(machine.tick(seconds(10))) == [Finished]
    assert machine.view.floor == 1


def test_what_was_condemned_does_not_expire_any_more() -> None:
    machine = subscription(max_deliveries=1)
    publish(machine, 1, expires=[10])
    take(machine, 1)
    machine.nack(1, offsets(0), seconds(1))
    assert machine.tick(seconds(10)) == []
    assert machine.view.state_of(Offset(0)) == "dead_letter_pending"


# ---------------------------------------------------------------------- delays and retries


def test_a_retry_after_a_restart_rests_for_as_long_as_the_last_failure_says() -> None:
    machine = subscription(backoff=Backoff(min=50))
    publish(machine, 1)
    records: list[AnyRecord] = []
    for lease, now in ((1, 0), (2, 50)):
        _, taken = machine.take(seconds(now), limit=1, lease_id=lease)
        records += taken
        records += machine.nack(lease, offsets(0), seconds(now))[1]
    returned = records[-1]
    assert isinstance(returned, Returned)
    assert seconds(50 + 80) <= returned.due <= seconds(50 + 100)
    again = subscription(backoff=Backoff(min=50))
    publish(again, 1)
    for record in records:
        again.state.apply(record)
    assert take(again, 1, at=returned.due / SECOND - 1) == []
    assert take(again, 1, at=returned.due / SECOND) == [0]


def test_what_is_cancelled_while_it_is_delayed_never_comes_due() -> None:
    machine = subscription()
    publish(machine, 2, delay=[10, 10])
    machine.drop(offsets(0), CANCELLED)
    assert take(machine, 2, at=10) == [1]
    assert machine.view.next_event() is not None


def test_a_delivery_that_does_not_count_leaves_no_attempt_behind() -> None:
    machine = subscription(max_deliveries=1)
    publish(machine, 1)
    take(machine, 1)
    assert kinds(machine.release("ann", seconds(0))) == [Returned]
    assert machine.view.deliveries(Offset(0)) == 0
    assert take(machine, 1, lease=2) == [0]
    assert kinds(machine.nack(2, offsets(0), seconds(0))[1]) == [DeadLetterPending]


def test_a_take_of_nothing_gives_nothing() -> None:
    machine = subscription()
    publish(machine, 1)
    assert machine.take(seconds(0), limit=0, lease_id=1) == (None, [])


# ---------------------------------------------------------------------- leases


def test_an_extension_into_the_past_lets_the_message_lapse() -> None:
    machine = subscription()
    publish(machine, 2)
    take(machine, 2, at=10)
    machine.extend(1, offsets(0), seconds(5))
    assert kinds(machine.tick(seconds(10))) == [Returned]
    assert machine.view.state_of(Offset(1)) == "leased"


def test_extending_there_and_back_lets_a_message_lapse_once() -> None:
    machine = subscription(max_deliveries=0, backoff=Backoff(min=0))
    publish(machine, 1)
    take(machine, 1)
    for deadline in (60, 30, 60, 30):
        machine.extend(1, offsets(0), seconds(deadline))
    assert kinds(machine.tick(seconds(30))) == [Returned]
    assert machine.view.deliveries(Offset(0)) == 1
    assert machine.view.next_event() is None


def test_a_forged_lease_settles_nothing() -> None:
    machine = subscription()
    publish(machine, 1)
    take(machine, 1, lease=5)
    for forged in (0, 4, 6, -5):
        assert machine.ack(forged, offsets(0)) == (offsets(), [])
        assert machine.nack(forged, offsets(0), seconds(0)) == (offsets(), [])
        assert machine.extend(forged, offsets(0), seconds(0)) == (offsets(), [])
        assert machine.requeue(forged, offsets(0), seconds(0)) == []
    assert machine.view.state_of(Offset(0)) == "leased"


def test_what_a_consumer_was_given_does_not_change_when_it_settles_some_of_it() -> None:
    machine = subscription()
    publish(machine, 3)
    taken, _ = machine.take(seconds(0), limit=3, lease_id=1)
    assert taken is not None
    machine.ack(1, offsets(1))
    assert taken.offsets == offsets(0, 1, 2)


# ---------------------------------------------------------------------- priorities


def test_of_a_level_only_the_messages_that_are_old_enough_go_first() -> None:
    machine = subscription(ageing="60s")
    publish(machine, 1, priority=4)
    publish(machine, 300, at=119, priority=4)
    publish(machine, 300, at=120, priority=5)
    assert take(machine, 100, at=120) == [0, *range(301, 400)]


def test_of_equal_effective_priorities_the_higher_own_one_goes_first() -> None:
    machine = subscription(ageing="60s")
    publish(machine, 2, priority=3)
    publish(machine, 2, at=60, priority=4)
    assert take(machine, 3, at=60) == [0, 2, 3]


def test_a_message_counts_as_no_older_than_those_before_it_when_the_clock_is_set_back() -> None:
    machine = subscription(ageing="60s")
    publish(machine, 1, at=100, priority=3)
    publish(machine, 1, at=40, priority=4)
    publish(machine, 1, at=100, priority=5)
    assert take(machine, 1, at=100) == [2]


# ---------------------------------------------------------------------- keys


def test_with_order_by_key_priorities_do_not_count() -> None:
    machine = subscription(ordering=Ordering.KEY, ageing="0s")
    publish(machine, 4, key=[b"a", b"b", b"a", None], priority=[0, 5, 9, 9])
    assert take(machine, 1) == [0]


def test_a_free_key_is_found_behind_any_number_of_messages_that_wait() -> None:
    machine = subscription(ordering=Ordering.KEY)
    publish(machine, 30_000, key=[b"slow"] * 30_000)
    assert take(machine, 10) == [0]
    publish(machine, 1, key=[b"free"])
    assert machine.view.ready_count == 1
    assert take(machine, 10, lease=2) == [30_000]


def test_the_empty_key_is_a_key() -> None:
    machine = subscription(ordering=Ordering.KEY)
    publish(machine, 3, key=[b"", b"", None])
    assert take(machine, 10) == [0, 2]


def test_a_key_with_many_messages_cancelled_in_line_goes_on_with_the_first_that_is_left() -> None:
    machine = subscription(ordering=Ordering.KEY)
    publish(machine, 1000, key=[b"a", b"b"] * 500)
    take(machine, 10)
    machine.drop(offsets(*range(2, 990)), CANCELLED)
    machine.ack(1, offsets(0, 1))
    assert take(machine, 10, lease=2) == [990, 991]


def test_a_delayed_message_of_a_key_is_delivered_before_those_that_wait_behind_another() -> None:
    machine = subscription(ordering=Ordering.KEY)
    publish(machine, 5, key=[b"a"] * 5, delay=[5, 3, None, None, None])
    delivered = take(machine, 9)
    for lease in range(1, 5):
        machine.ack(lease, offsets(delivered[-1]))
        delivered += take(machine, 9, at=4 + lease, lease=lease + 1)
    assert delivered == [2, 0, 1, 3, 4]


def test_what_comes_due_goes_before_the_message_of_its_key_that_is_ready_but_not_taken() -> None:
    machine = subscription(ordering=Ordering.KEY)
    publish(machine, 3, key=[b"a"] * 3, delay=[5, None, None])
    assert machine.tick(seconds(5)) == []
    assert take(machine, 9, at=5) == [0]


def test_two_of_a_key_that_were_taken_before_there_was_an_order_do_no_harm() -> None:
    unordered = subscription()
    publish(unordered, 3, key=[b"a"] * 3)
    _, records = unordered.take(seconds(0), limit=2, lease_id=1)
    ordered = subscription(ordering=Ordering.KEY)
    publish(ordered, 3, key=[b"a"] * 3)
    for record in records:
        ordered.state.apply(record)
    assert take(ordered, 9, lease=2) == []
    ordered.ack(1, offsets(0, 1))
    assert take(ordered, 9, lease=3) == [2]


# ---------------------------------------------------------------------- the ends of the log


def test_what_the_log_no_longer_has_is_finished_whoever_has_it() -> None:
    machine = subscription(max_deliveries=1)
    publish(machine, 5, delay=[None, None, 10, None, None])
    take(machine, 2)
    machine.nack(1, offsets(0), seconds(0))
    records = machine.skip_to(Offset(4))
    assert sum(len(record.bitmap) for record in records) == 4
    assert machine.view.floor == 4
    assert machine.tick(seconds(100)) == []


def test_old_records_of_what_the_log_no_longer_has_change_nothing() -> None:
    machine = subscription()
    publish(machine, 2)
    machine.skip_to(Offset(1))
    data = offsets(0).serialize()
    machine.state.apply(Leased(data, 1, "ann", seconds(0), seconds(30)))
    assert machine.view.depth.leased == 0
    assert machine.view.next_event() is None


def test_messages_that_a_crash_lost_leave_nothing_to_those_that_take_their_place() -> None:
    machine = subscription(ordering=Ordering.KEY, max_deliveries=1)
    publish(machine, 1, key=[b"a"])
    publish(machine, 3, key=[b"a", b"b", b"c"], delay=[5, 5, None], expires=[9, 9, None])
    take(machine, 9)
    machine.nack(1, offsets(3), seconds(0))
    machine.state.forget_from(Offset(1))
    publish(machine, 3, key=[b"b", b"b", b"a"], delay=[None, 20, None])
    assert machine.state.observed_to == 4
    assert take(machine, 9, at=10, lease=2) == [1]
    machine.ack(1, offsets(0))
    machine.ack(2, offsets(1))
    assert take(machine, 9, at=19, lease=3) == [3]
    assert take(machine, 9, at=20, lease=4) == [2]


# ---------------------------------------------------------------------- settings


def test_choices_are_taken_by_name() -> None:
    settings = SubscriptionSettings(topics=["t"], ordering="key", guarantee="at-most-once")  # type: ignore[arg-type]
    assert settings.ordering is Ordering.KEY
    assert settings.guarantee is Guarantee.AT_MOST_ONCE


def test_an_unknown_choice_is_named_with_those_there_are() -> None:
    with pytest.raises(
        InvalidSetting, match="ordering must be one of none, key, partition, not 'fifo'"
    ):
        SubscriptionSettings(topics=["t"], ordering="fifo")  # type: ignore[arg-type]


def test_a_back_off_that_would_rest_less_than_its_minimum_is_refused() -> None:
    with pytest.raises(InvalidSetting, match=r"backoff\.max must not be below backoff\.min"):
        Backoff(min="20m", max="10m")


@pytest.mark.parametrize(("deliveries", "rest"), [(1, 2), (2, 6), (3, 18), (4, 20), (10_000, 20)])
def test_a_back_off_grows_up_to_its_maximum(deliveries: int, rest: int) -> None:
    assert Backoff(min=2, max=20, factor=3).delay_us(deliveries) == seconds(rest)


def test_a_message_rests_for_a_second_first_and_for_ten_minutes_at_most_by_default() -> None:
    longest = [Backoff().delay_us(deliveries) for deliveries in (1, 2, 3, 100)]
    assert longest == [seconds(1), seconds(2), seconds(4), seconds(600)]


def test_jitter_takes_up_to_a_fifth_off_a_delay_and_spreads_what_failed_together() -> None:
    rests = [jittered_us(seconds(10), lease, 0) for lease in range(1000)]
    rests += [jittered_us(seconds(10), 7, offset) for offset in range(1000)]
    assert seconds(8) <= min(rests) < seconds(8.01)
    assert seconds(9.99) < max(rests) <= seconds(10)
    assert len(set(rests)) > 1900


@pytest.mark.parametrize("fails", ["nack", "lapse"])
def test_messages_that_fail_in_the_same_moment_come_back_at_different_ones(fails: str) -> None:
    machine = subscription(backoff=Backoff(min=10), visibility="5s", max_deliveries=0)
    publish(machine, 20)
    for lease in range(1, 21):
        take(machine, 1, lease=lease)
    if fails == "nack":
        records = [machine.nack(n, offsets(n - 1), seconds(5))[1][0] for n in range(1, 21)]
    else:
        records = machine.tick(seconds(5))
    due = [record.due for record in records if isinstance(record, Returned)]
    assert len(set(due)) == 20
    assert all(seconds(5 + 8) <= one <= seconds(5 + 10) for one in due)


@pytest.mark.parametrize("fails", ["nack", "lapse"])
def test_without_a_back_off_a_message_is_ready_again_at_once(fails: str) -> None:
    machine = subscription(backoff=Backoff(min=0), visibility="5s", max_deliveries=0)
    publish(machine, 1)
    for attempt in range(1, 5):
        assert take(machine, 1, at=5 * attempt, lease=attempt) == [0]
        if fails == "nack":
            machine.nack(attempt, offsets(0), seconds(5 * attempt))


def test_a_delay_that_a_nack_names_has_no_jitter() -> None:
    machine = subscription(max_deliveries=0)
    publish(machine, 1)
    take(machine, 1)
    (returned,) = machine.nack(1, offsets(0), seconds(0), seconds(3))[1]
    assert isinstance(returned, Returned)
    assert returned.due == seconds(3)


def test_a_dead_letter_whose_lease_lapsed_says_so() -> None:
    machine = subscription(max_deliveries=1, visibility="5s")
    publish(machine, 2)
    take(machine, 2)
    machine.nack(1, offsets(0), seconds(1), error="no such customer")
    machine.tick(seconds(5))
    assert machine.view.last_error(Offset(0)) == "no such customer"
    assert machine.view.last_error(Offset(1)) == "its lease ended before it was settled"


# ---------------------------------------------------------------------- rejects


@pytest.mark.parametrize("max_deliveries", [0, 5])
def test_a_rejected_message_is_a_pending_dead_letter_at_once(max_deliveries: int) -> None:
    machine = subscription(max_deliveries=max_deliveries)
    publish(machine, 2)
    take(machine, 2)
    held, records = machine.reject(1, offsets(0), "no such customer")
    assert (held, kinds(records)) == (offsets(0), [DeadLetterPending])
    assert machine.view.state_of(Offset(0)) == "dead_letter_pending"
    assert machine.view.last_error(Offset(0)) == "no such customer"
    assert machine.view.state_of(Offset(1)) == "leased"


def test_a_message_that_expired_in_its_lease_is_finished_when_it_is_rejected() -> None:
    machine = subscription()
    publish(machine, 1, expires=[10])
    take(machine, 1)
    machine.tick(seconds(10))
    held, records = machine.reject(1, offsets(0))
    assert (held, kinds(records)) == (offsets(0), [Finished])


def test_a_reject_of_what_nobody_holds_changes_nothing() -> None:
    machine = subscription(guarantee="at-most-once")
    publish(machine, 1)
    take(machine, 1)
    assert machine.reject(1, offsets(0)) == (offsets(), [])
    assert machine.view.state_of(Offset(0)) == "finished"


def test_the_error_of_a_reject_is_cut_as_that_of_a_nack_is() -> None:
    machine = subscription()
    publish(machine, 1)
    take(machine, 1)
    machine.reject(1, offsets(0), "x" * 5000)
    assert machine.view.last_error(Offset(0)) == "x" * 1000


# ---------------------------------------------------------------------- what a split waits for


def test_a_place_is_passed_when_all_before_it_is_finished_or_waits_for_its_schedule() -> None:
    machine = subscription(ordering="key", backoff=Backoff(min=50), max_deliveries=2)
    publish(machine, 4, key=[b"a", b"a", b"b", b"c"], delay=[None, None, None, 1000])
    assert not machine.view.has_passed(Offset(4))  # ready, and one in line behind its key
    assert take(machine, 4) == [0, 2]
    machine.ack(1, offsets(0))
    assert take(machine, 4, lease=2) == [1]
    machine.ack(2, offsets(1))
    assert machine.view.has_passed(Offset(2))
    assert not machine.view.has_passed(Offset(3))  # leased
    machine.nack(1, offsets(2), seconds(1))
    assert not machine.view.has_passed(Offset(3))  # it rests before it is tried again
    assert take(machine, 4, at=60, lease=3) == [2]
    machine.nack(3, offsets(2), seconds(61))
    assert not machine.view.has_passed(Offset(3))  # on its way to the dead letters
    machine.dead_lettered(offsets(2))
    assert machine.view.has_passed(Offset(4))
    assert machine.view.floor == 3
    assert not machine.view.has_passed(Offset(5))  # nobody has looked that far yet


def test_what_is_put_back_is_not_passed_whatever_the_clock_of_the_next_leader_says() -> None:
    machine = subscription(ordering="partition")
    publish(machine, 3)
    assert take(machine, 2, at=100) == [0, 1]
    machine.requeue(1, offsets(0, 1), seconds(100))
    assert not machine.view.has_passed(Offset(2))
    assert take(machine, 3, at=50) == [0, 1, 2]


# ---------------------------------------------------------------------- what was scheduled


def test_a_scheduled_message_is_known_as_such_until_it_is_finished() -> None:
    machine = subscription()
    publish(machine, 3, delay=[None, 10, 20])
    assert machine.state.scheduled_after(seconds(0)) == 1
    machine.tick(seconds(12))
    assert machine.state.scheduled_after(seconds(5)) == 1, "it was due later than that"
    assert take(machine, 2, at=12) == [0, 1]
    machine.ack(1, offsets(0, 1))
    assert machine.state.scheduled_after(seconds(5)) == 2
    assert machine.state.scheduled_after(seconds(20)) is None


def test_a_retry_is_not_taken_for_a_scheduled_message() -> None:
    machine = subscription()
    publish(machine, 1)
    take(machine, 1)
    machine.nack(1, offsets(0), seconds(1), 60 * SECOND)
    assert machine.state.scheduled_after(seconds(0)) is None
    again = subscription()
    again.state.restore(machine.state.snapshot())
    assert again.state.scheduled_after(seconds(0)) is None


def test_what_was_scheduled_is_known_after_a_restart_due_or_not() -> None:
    machine = subscription()
    publish(machine, 2, delay=[10, 20])
    machine.tick(seconds(12))
    again = subscription()
    again.state.restore(machine.state.snapshot())
    assert again.state.scheduled_after(seconds(5)) == 0
    assert again.state.scheduled_after(seconds(15)) == 1
    assert again.state.scheduled_after(seconds(20)) is None


def test_the_oldest_message_that_was_not_scheduled_is_told_apart() -> None:
    machine = subscription()
    publish(machine, 1, delay=[10], at=1)
    publish(machine, 1, at=5)
    machine.tick(seconds(12))
    assert machine.view.oldest_time == seconds(1)
    assert machine.view.oldest_unscheduled_time == seconds(5)
    machine.state.scheduled_after(seconds(11))
    assert machine.view.oldest_unscheduled_time == seconds(1)
