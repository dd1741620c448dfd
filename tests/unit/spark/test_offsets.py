"""Offsets: ranges, splits and limits, as sums that must come out whatever the numbers are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.errors import InvalidSetting
from quiver.spark.offsets import (
    Range,
    limited,
    offsets_as_json,
    offsets_from_json,
    ranges_between,
    split,
)

places = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 5))
offsets = st.dictionaries(places, st.integers(0, 10_000), max_size=8)


@given(offsets)
def test_offsets_survive_spark(some: dict) -> None:
    assert offsets_from_json("offsets", offsets_as_json(some)) == some


@pytest.mark.parametrize("text", ["soon", "[]", '{"a": 1}', '{"a": {"x": 1}}', '{"a": {"0": -3}}'])
def test_what_is_not_offsets_is_told(text: str) -> None:
    with pytest.raises(InvalidSetting, match="startingOffsets"):
        offsets_from_json("startingOffsets", text)


@given(st.lists(st.integers(0, 5_000), max_size=6), st.integers(1, 40))
def test_splitting_keeps_every_offset_once(sizes: list[int], count: int) -> None:
    ranges = [Range("t", place, 10, 10 + size) for place, size in enumerate(sizes) if size]
    pieces = split(ranges, count)
    for one in ranges:
        mine = [piece for piece in pieces if piece.partition == one.partition]
        assert [o for piece in mine for o in range(piece.start, piece.end)] == list(
            range(one.start, one.end)
        )
    assert all(len(piece) for piece in pieces)
    assert len(pieces) >= min(count, sum(map(len, ranges)))


@given(offsets, offsets, st.integers(1, 1_000))
def test_limits_hold_and_nobody_starves(start: dict, ahead: dict, most: int) -> None:
    latest = {place: start.get(place, 0) + more for place, more in ahead.items()}
    ends = limited(start, latest, most)
    taken = {place: ends[place] - start.get(place, 0) for place in latest}
    assert all(0 <= taken[place] <= ahead[place] for place in latest)
    assert sum(taken.values()) <= most + len(latest)
    assert all(taken[place] for place in latest if ahead[place])


@given(offsets, offsets)
def test_ranges_are_what_lies_between(start: dict, end: dict) -> None:
    found = {one.place: (one.start, one.end) for one in ranges_between(start, end)}
    assert found == {
        place: (start.get(place, 0), until)
        for place, until in end.items()
        if until > start.get(place, 0)
    }
