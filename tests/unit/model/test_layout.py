"""How a topic's keys are divided: whatever is split, every hash has one owner."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.broker.topics.catalog import TopicRecord
from quiver.errors import InvalidRequest
from quiver.model.ids import Offset
from quiver.model.key_hash import HASHES, KeyRouter, even_ranges, key_hash
from quiver.model.layout import Split, changed_in, middle_of, origin_of, range_of, split_after
from quiver.model.topic import PARTITIONS_MAX, TopicSettings


def topic(partitions: int) -> TopicRecord:
    return TopicRecord(
        name="orders",
        number=1,
        layout=1,
        settings=TopicSettings(partitions=partitions),
        created_us=0,
        first_hashes=even_ranges(partitions),
    )


histories = st.tuples(st.integers(1, 8), st.lists(st.integers(0, 30), max_size=20))


def grown(history: tuple[int, list[int]]) -> list[TopicRecord]:
    """A topic, and what it was after each of these splits."""
    partitions, splits = history
    records = [topic(partitions)]
    for number, index in enumerate(splits):
        record = records[-1]
        records.append(record.with_split(index % len(record.first_hashes), Offset(number)))
    return records


@given(histories)
def test_the_ranges_are_all_hashes_each_once(history: tuple[int, list[int]]) -> None:
    for record in grown(history):
        spans = sorted(range_of(record.first_hashes, i) for i in range(len(record.first_hashes)))
        assert spans[0][0] == 0
        assert spans[-1][1] == HASHES
        assert [end for _, end in spans[:-1]] == [first for first, _ in spans[1:]]
        assert all(first < end for first, end in spans)


@given(histories, st.binary(max_size=20))
def test_a_split_moves_keys_from_the_parent_to_the_child_and_no_others(
    history: tuple[int, list[int]], key: bytes
) -> None:
    records = grown(history)
    for before, after in pairwise(records):
        split = after.splits[-1]
        old = KeyRouter.of(before.first_hashes).partition(key)
        new = KeyRouter.of(after.first_hashes).partition(key)
        assert new == old or (old, new) == (split.parent, split.child)


@given(histories, st.binary(max_size=20))
def test_a_key_whose_partition_has_not_changed_since_a_layout_is_routed_as_by_that_one(
    history: tuple[int, list[int]], key: bytes
) -> None:
    """What makes it safe to take a batch that was routed by an older layout."""
    records = grown(history)
    for record in records:
        index = KeyRouter.of(record.first_hashes).partition(key)
        if records[-1].changed_in(index) <= record.layout:
            assert KeyRouter.of(records[-1].first_hashes).partition(key) == index


@given(histories, st.binary(max_size=20))
def test_a_router_knows_the_range_of_each_owner(history: tuple[int, list[int]], key: bytes) -> None:
    router = KeyRouter.of(grown(history)[-1].first_hashes)
    first, end = router.ranges[router.partition(key)]
    assert first <= key_hash(key) < end


def test_the_upper_half_is_split_off() -> None:
    record = topic(2).with_split(0, Offset(7))
    assert record.first_hashes == [0, 1 << 31, 1 << 30]
    assert record.splits == [Split(parent=0, child=2, offset=Offset(7), layout=2)]
    assert record.layout == 2
    assert record.settings.partitions == 2


def test_what_is_known_of_a_partition_s_past() -> None:
    splits = topic(2).with_split(0, Offset(7)).with_split(2, Offset(8)).splits
    assert [changed_in(splits, index) for index in range(4)] == [2, 1, 3, 3]
    assert origin_of(splits, 0) is None
    assert origin_of(splits, 3) == splits[1]
    assert split_after(splits, 0, 1) == splits[0]
    assert split_after(splits, 0, 2) is None
    assert split_after(splits, 1, 0) is None


def test_a_single_hash_cannot_be_split() -> None:
    with pytest.raises(InvalidRequest, match="only one key hash"):
        middle_of([0, 1], 0)


def test_there_is_an_end_to_splitting() -> None:
    with pytest.raises(InvalidRequest, match="the most allowed"):
        topic(PARTITIONS_MAX).with_split(0, Offset(0))
