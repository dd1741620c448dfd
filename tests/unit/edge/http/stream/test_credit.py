"""What a streaming consumer may be sent, and what it holds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from quiver.edge.http.stream.credit import CREDIT_MAX, HELD_MAX, Holdings

LEASE, OTHER = b"a" * 26, b"b" * 26


def test_nothing_is_wanted_without_credit() -> None:
    assert Holdings().wanted(0) == 0


def test_credit_is_used_up_by_deliveries_and_not_by_settling() -> None:
    holdings = Holdings()
    holdings.grant(3)
    holdings.delivered(LEASE, [1, 2], deadline_us=100)
    assert holdings.wanted(0) == 1
    holdings.settled(LEASE, BitMap64([1, 2]))
    assert (holdings.wanted(0), holdings.held) == (1, 0)


def test_credit_has_a_bound() -> None:
    holdings = Holdings()
    for _ in range(3):
        holdings.grant(CREDIT_MAX)
    assert holdings.credit == CREDIT_MAX


def test_no_more_is_held_than_the_bound_until_something_is_settled() -> None:
    holdings = Holdings()
    holdings.grant(CREDIT_MAX)
    holdings.delivered(LEASE, range(HELD_MAX), deadline_us=100)
    assert holdings.wanted(0) == 0
    holdings.settled(LEASE, BitMap64([5]))
    assert holdings.wanted(0) == 1


def test_what_lapsed_is_not_held_any_more() -> None:
    holdings = Holdings()
    holdings.grant(10)
    holdings.delivered(LEASE, [1], deadline_us=100)
    holdings.delivered(OTHER, [2], deadline_us=200)
    assert holdings.next_lapse_us() == 100
    assert holdings.all(150) == [(OTHER, BitMap64([2]))]


def test_what_is_extended_is_held_for_longer() -> None:
    holdings = Holdings()
    holdings.grant(1)
    holdings.delivered(LEASE, [1], deadline_us=100)
    holdings.extended(LEASE, 300)
    assert holdings.all(200) == [(LEASE, BitMap64([1]))]


def test_settling_one_message_keeps_its_neighbours() -> None:
    holdings = Holdings()
    holdings.grant(3)
    holdings.delivered(LEASE, [1, 2, 3], deadline_us=100)
    holdings.settled(LEASE, BitMap64([2]))
    holdings.settled(OTHER, BitMap64([1]))
    assert holdings.all(0) == [(LEASE, BitMap64([1, 3]))]


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 60)), max_size=30))
def test_no_more_is_ever_wanted_than_was_granted(steps: list[tuple[int, int]]) -> None:
    holdings, granted, taken, offset = Holdings(), 0, 0, 0
    for grant, take in steps:
        holdings.grant(grant)
        granted += grant
        count = min(take, holdings.wanted(0))
        holdings.delivered(LEASE, range(offset, offset + count), deadline_us=1)
        offset += count
        taken += count
        assert taken + holdings.wanted(0) <= granted
