"""Which message a program got first, of those that it has."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from quiver.client.consumer.relay.started_order import StartedOrder
from quiver.client.consumer.session.leases import Leases

A, B = b"a" * 26, b"b" * 26


def test_the_oldest_is_the_first_that_was_started_and_is_still_held() -> None:
    order, held = StartedOrder(), {A: BitMap64([1, 2]), B: BitMap64([7])}
    order.add([(A, [2, 1])], held)
    order.add([(B, [7])], held)
    assert order.oldest(held) == (A, 2)
    assert order.oldest({A: BitMap64([1]), B: BitMap64([7])}) == (A, 1)
    assert order.oldest({B: BitMap64([7])}) == (B, 7)
    assert order.oldest({}) is None


@given(st.lists(st.booleans(), max_size=600))
def test_it_remembers_little_more_than_what_is_held(settled: list[bool]) -> None:
    order = StartedOrder()
    held: Leases = {}
    first: list[bytes] = []
    for number, is_settled in enumerate(settled):
        lease = number.to_bytes(26, "big")
        if not is_settled:
            held[lease] = BitMap64([number])
            first.append(lease)
        order.add([(lease, [number])], held)
        assert len(order) <= 2 * len(held) + 201
    assert order.oldest(held) == ((first[0], int.from_bytes(first[0], "big")) if first else None)
