"""What a streaming consumer may be sent, and what it holds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from quiver.edge.http.stream.credit import CREDIT_MAX, HELD_MAX, StreamCredit

LEASE, OTHER = b"a" * 26, b"b" * 26


def test_nothing_is_wanted_without_credit() -> None:
    assert StreamCredit().wanted(0) == 0


def test_credit_is_used_up_by_deliveries_and_not_by_settling() -> None:
    credit = StreamCredit()
    credit.grant(3)
    credit.delivered(LEASE, [1, 2], deadline_us=100)
    assert credit.wanted(0) == 1
    credit.settled(LEASE, BitMap64([1, 2]))
    assert (credit.wanted(0), credit.held) == (1, 0)


def test_credit_has_a_bound() -> None:
    credit = StreamCredit()
    for _ in range(3):
        credit.grant(CREDIT_MAX)
    assert credit.credit == CREDIT_MAX


def test_no_more_is_held_than_the_bound_until_something_is_settled() -> None:
    credit = StreamCredit()
    credit.grant(CREDIT_MAX)
    credit.delivered(LEASE, range(HELD_MAX), deadline_us=100)
    assert credit.wanted(0) == 0
    credit.settled(LEASE, BitMap64([5]))
    assert credit.wanted(0) == 1


def test_what_lapsed_is_not_held_any_more() -> None:
    credit = StreamCredit()
    credit.grant(10)
    credit.delivered(LEASE, [1], deadline_us=100)
    credit.delivered(OTHER, [2], deadline_us=200)
    assert credit.next_lapse_us() == 100
    assert credit.all(150) == [(OTHER, BitMap64([2]))]


def test_what_is_extended_is_held_for_longer() -> None:
    credit = StreamCredit()
    credit.grant(1)
    credit.delivered(LEASE, [1], deadline_us=100)
    credit.extended(LEASE, 300)
    assert credit.all(200) == [(LEASE, BitMap64([1]))]


def test_settling_one_message_keeps_its_neighbours() -> None:
    credit = StreamCredit()
    credit.grant(3)
    credit.delivered(LEASE, [1, 2, 3], deadline_us=100)
    credit.settled(LEASE, BitMap64([2]))
    credit.settled(OTHER, BitMap64([1]))
    assert credit.all(0) == [(LEASE, BitMap64([1, 3]))]


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 60)), max_size=30))
def test_no_more_is_ever_wanted_than_was_granted(steps: list[tuple[int, int]]) -> None:
    credit, granted, taken, offset = StreamCredit(), 0, 0, 0
    for grant, take in steps:
        credit.grant(grant)
        granted += grant
        count = min(take, credit.wanted(0))
        credit.delivered(LEASE, range(offset, offset + count), deadline_us=1)
        offset += count
        taken += count
        assert taken + credit.wanted(0) <= granted
