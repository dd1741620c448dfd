"""The window of ids: what it takes for a repeat, against a plain model, and how it forgets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiver.broker.partition.producers import dedup, fingerprints
from quiver.broker.partition.producers.dedup import DedupWindow, Seen
from quiver.broker.partition.producers.fingerprints import Fingerprints, FingerprintTable
from quiver.model.ids import Microseconds, Offset

WINDOW_US = 100
HOUR_US = 3_600_000_000
batches = st.lists(
    st.tuples(
        st.integers(0, 60),
        st.lists(st.sampled_from([None, "a", "b", "c", "d"]), min_size=1, max_size=6),
    ),
    max_size=30,
)


@settings(deadline=None)
@given(batches)
def test_each_id_is_stored_once_within_the_window(sent: list[tuple[int, list[str | None]]]) -> None:
    window = DedupWindow(WINDOW_US)
    known: dict[str, Seen] = {}
    now, end = 0, 0
    for pause, ids in sent:
        now += pause
        window.expire(Microseconds(now))
        known = {one: seen for one, seen in known.items() if seen.append_time > now - WINDOW_US}
        repeats = window.repeats(ids)
        new: list[str | None] = []
        for row, one in enumerate(ids):
            is_repeat = one is not None and (one in known or one in new)
            assert (row in repeats) == is_repeat
            if not is_repeat:
                new.append(one)
        window.record(new, Offset(end), Microseconds(now))
        for row, one in enumerate(new):
            if one is not None:
                known[one] = Seen(Offset(end + row), Microseconds(now))
        end += len(new)
        assert {one: window.find(one) for one in "abcd" if window.find(one)} == known
        assert len(window) == len(known)


def test_ids_beyond_the_bound_are_forgotten_oldest_first_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dedup, "BYTES_MAX", 4 * 32)
    window = DedupWindow(WINDOW_US)
    for place in range(5):
        window.record([f"id {place}"], Offset(place), Microseconds(place))
        window.expire(Microseconds(place))
    assert [window.find(f"id {place}") is not None for place in range(5)] == [
        False,
        False,
        *[True] * 3,
    ]
    assert window.forgotten == 2
    assert window.first_offset is not None
    assert window.first_offset <= 2, "what is still known is found again after a restart"


def test_a_window_in_its_bound_forgets_nothing_before_its_time() -> None:
    window, hour_us = DedupWindow(HOUR_US), range(0, HOUR_US, HOUR_US // 120)
    for place, now in enumerate(hour_us):
        ids = [f"{place}-{row}" for row in range(10_000)]
        window.expire(Microseconds(now))
        assert window.repeats(ids) == []
        window.record(ids, Offset(place * 10_000), Microseconds(now))
    assert len(window) == 1_200_000
    assert window.forgotten == 0
    assert window.bytes < 60 << 20
    for place in (0, 60, 119):
        ids = [f"{place}-{row}" for row in range(10_000)]
        assert window.repeats(ids) == list(range(10_000))
        assert window.find(ids[7]) == Seen(Offset(place * 10_000 + 7), hour_us[place])


def test_a_clock_that_was_ahead_for_a_while_makes_no_id_unknown() -> None:
    window = DedupWindow(WINDOW_US)
    window.expire(Microseconds(10 * WINDOW_US))
    for place in range(3):
        window.record([f"id {place}"], Offset(place), Microseconds(place))
    window.expire(Microseconds(3))
    assert window.repeats([f"id {place}" for place in range(4)]) == [0, 1, 2]
    assert window.first_offset == 0


def test_a_window_that_nobody_writes_to_lets_go_of_its_memory() -> None:
    window = DedupWindow(WINDOW_US)
    window.record([f"id {row}" for row in range(5_000)], Offset(0), Microseconds(1))
    window.expire(Microseconds(1 + 2 * WINDOW_US))
    assert (len(window), window.bytes, window.first_offset) == (0, 0, None)


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 300), max_size=40), max_size=60), st.integers(1, 40))
def test_fingerprints_are_found_wherever_they_are(batches: list[list[int]], window: int) -> None:
    with pytest.MonkeyPatch.context() as small:
        small.setattr(fingerprints, "_TAIL_ROWS", 4)
        small.setattr(fingerprints, "_RUN_ROWS_MAX", 64)
        small.setattr(fingerprints, "_MERGED", 2)
        table, known = FingerprintTable(), dict[str, tuple[int, int]]()
        asked = [f"id {one}" for one in range(301)] + ["id 0"]
        for time, numbers in enumerate(batches):
            after = Microseconds(time - window)
            fresh = [f"id {one}" for one in set(numbers)]
            fresh = [one for one in fresh if one not in known or known[one][1] <= after]
            table.add(Fingerprints.of(fresh), np.arange(len(fresh)), Microseconds(time))
            known |= {one: (place, time) for place, one in enumerate(fresh)}
            table.forget(after)
            if time % 7 == 0:
                table.compact(after)
            live = {one: place for one, place in known.items() if place[1] > after}
            found = table.find(Fingerprints.of(asked), after)
            places = zip(found.offsets.tolist(), found.times.tolist(), strict=True)
            assert list(places) == [live.get(name, (-1, -1)) for name in asked]
            few = table.find(Fingerprints.of(asked[:3]), after)
            assert few.times.tolist() == found.times[:3].tolist()
            assert table.count_after(after) == len(live)


def test_ids_with_a_hash_in_common_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprints, "_TAIL_ROWS", 2)
    table = FingerprintTable()
    alike = Fingerprints(np.full(5, 7, np.int64), np.arange(5))
    table.add(alike, np.arange(5), Microseconds(1))
    asked = Fingerprints(np.full(7, 7, np.int64), np.arange(-1, 6))
    assert table.find(asked, Microseconds(0)).offsets.tolist() == [-1, 0, 1, 2, 3, 4, -1]


def test_a_window_of_nothing_remembers_nothing() -> None:
    window = DedupWindow(0)
    window.record(["a"], Offset(0), Microseconds(0))
    assert window.repeats(["a"]) == []
    assert window.first_offset is None
