"""The ids of many messages: the same as one by one, in whatever order they stand."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiver.edge.messages.message_ids import message_ids
from quiver.model.ids import Microseconds, Offset, PartitionIndex
from quiver.model.message_id import MessageId


class _Stored(msgspec.Struct, frozen=True):
    timestamp_us: int
    topic_number: int
    partition: int
    offset: int


def _id(one: _Stored) -> str:
    return str(
        MessageId(
            append_time=Microseconds(one.timestamp_us),
            topic=one.topic_number,
            partition=PartitionIndex(one.partition),
            offset=Offset(one.offset),
        )
    )


stored = st.builds(
    _Stored,
    timestamp_us=st.sampled_from([0, 1_700_000_000_000_000, (1 << 56) - 1]),
    topic_number=st.sampled_from([0, 7, (1 << 32) - 1]),
    partition=st.sampled_from([0, 3, (1 << 16) - 1]),
    offset=st.integers(0, 3000) | st.integers(0, (1 << 56) - 1),
)


@settings(max_examples=200)
@given(st.lists(stored, max_size=40))
def test_ids_of_many_are_those_of_each(messages: list[_Stored]) -> None:
    assert message_ids(messages) == [_id(one) for one in messages]


@pytest.mark.parametrize("count", [1, 15, 16, 5000])
@pytest.mark.parametrize("step_us", [0, 1])
def test_ids_of_neighbours_are_those_of_each(count: int, step_us: int) -> None:
    messages = [
        _Stored(1_700_000_000_000_000 + step_us * number, 7, 3, 1000 + number)
        for number in range(count)
    ]
    assert message_ids(messages) == [_id(one) for one in messages]
