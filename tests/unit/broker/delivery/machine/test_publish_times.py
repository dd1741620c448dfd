"""When the messages of an acknowledgement were published, batch by batch and within a bound."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from quiver.broker.delivery.machine.ready import PublishTimes
from quiver.model.ids import Microseconds


def times_of(*batches: tuple[int, int]) -> PublishTimes:
    times = PublishTimes()
    for base, time in batches:
        times.add(base, Microseconds(time))
    return times


def test_messages_are_counted_with_their_batch() -> None:
    times = times_of((0, 100), (10, 200), (20, 300))
    assert list(times.split(BitMap64([1, 2, 10, 25, 26, 27]))) == [(100, 2), (200, 1), (300, 3)]


def test_nothing_is_said_of_nothing() -> None:
    assert list(PublishTimes().split(BitMap64([1]))) == []
    assert list(times_of((0, 100)).split(BitMap64())) == []


@given(st.sets(st.integers(0, 5000), min_size=1), st.integers(1, 50))
def test_every_message_is_counted_once_in_a_bounded_number_of_steps(
    offsets: set[int], size: int
) -> None:
    times = times_of(*((base, base + 1) for base in range(0, 5001, size)))
    parts = list(times.split(BitMap64(offsets)))
    assert sum(count for _, count in parts) == len(offsets)
    assert len(parts) <= 65
    assert [time for time, _ in parts] == sorted(time for time, _ in parts)
