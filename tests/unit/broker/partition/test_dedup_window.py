"""The window of ids: what it takes for a repeat, against a plain model, and how it forgets."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from quiver.broker.partition import dedup
from quiver.broker.partition.dedup import DedupWindow, Seen
from quiver.model.ids import Microseconds, Offset

WINDOW_US = 100
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


def test_ids_beyond_the_bound_are_forgotten_oldest_first(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(dedup, "IDS_MAX", 3)
    window = DedupWindow(WINDOW_US)
    for place in range(5):
        window.record([f"id {place}"], Offset(place), Microseconds(place))
        window.expire(Microseconds(place))
    assert [window.find(f"id {place}") is not None for place in range(5)] == [
        False,
        False,
        *[True] * 3,
    ]
    assert window.first_offset == 2


def test_a_window_of_nothing_remembers_nothing() -> None:
    window = DedupWindow(0)
    window.record(["a"], Offset(0), Microseconds(0))
    assert window.repeats(["a"]) == []
    assert window.first_offset is None
