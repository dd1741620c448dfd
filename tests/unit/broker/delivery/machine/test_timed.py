"""Offsets that wait for a moment, against a dict."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from quiver.broker.delivery.machine import timed
from quiver.broker.delivery.machine.timed import TimedOffsets
from quiver.model.ids import Microseconds
from tests.unit.broker.delivery.small_deliveries import offsets

few = st.sets(st.integers(0, 30), max_size=8)
steps = st.one_of(
    st.tuples(st.just("add"), few, st.integers(0, 20)),
    st.tuples(st.just("add_each"), few, st.integers(0, 20)),
    st.tuples(st.just("discard"), few, st.just(0)),
    st.tuples(st.just("take"), st.just(set[int]()), st.integers(-1, 3)),
)


@pytest.fixture(params=[True, False], ids=["merged early", "merged late"])
def _bounds(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param:
            patch.setattr(timed, "_RUNS_MAX", 3)
            patch.setattr(timed, "_LARGE_RUNS", 1)
            patch.setattr(timed, "_DISCARDED_MAX", 2)
        yield


@pytest.mark.usefixtures("_bounds")
@given(st.lists(steps, max_size=40))
def test_everything_comes_due_at_its_time_and_once(todo: list[tuple[str, set[int], int]]) -> None:
    waiting: dict[int, int] = {}
    kept, now = TimedOffsets(), 0
    for step, places, number in todo:
        fresh = sorted(places - set(waiting))
        if step == "add":
            kept.add(BitMap64(fresh), Microseconds(number))
            waiting.update(dict.fromkeys(fresh, number))
        elif step == "add_each":
            dues = [number * place % 21 for place in fresh]
            kept.add_each(np.array(dues, np.int64), np.array(fresh, np.int64))
            waiting.update(zip(fresh, dues, strict=True))
        elif step == "discard":
            kept.discard(BitMap64(places))
            waiting = {place: due for place, due in waiting.items() if place not in places}
        else:
            now += number
            expected = {place for place, due in waiting.items() if due <= now}
            assert set(kept.take_due(Microseconds(now))) == expected
            waiting = {place: due for place, due in waiting.items() if place not in expected}
        assert set(kept.members) == set(waiting)
        assert kept.next_due is None or kept.next_due <= min(
            waiting.values(), default=kept.next_due
        )
        assert (kept.next_due is None) <= (not waiting)
        found = kept.moments()
        pairs = zip(found.offsets.tolist(), found.times.tolist(), strict=True)
        assert sorted(pairs) == sorted(waiting.items())


def test_what_is_discarded_and_added_again_is_not_due_at_its_old_time() -> None:
    kept = TimedOffsets()
    kept.add(offsets(5, 6), Microseconds(50))
    kept.discard(offsets(5))
    kept.add(offsets(5), Microseconds(200))
    assert kept.take_due(Microseconds(60)) == offsets(6)
    assert kept.take_due(Microseconds(199)) == offsets()
    assert kept.take_due(Microseconds(200)) == offsets(5)


def test_what_is_added_again_for_an_earlier_time_is_due_once() -> None:
    kept = TimedOffsets()
    kept.add(offsets(5), Microseconds(200))
    kept.add(offsets(6), Microseconds(300))
    kept.discard(offsets(5))
    kept.add(offsets(5), Microseconds(50))
    assert kept.take_due(Microseconds(60)) == offsets(5)
    assert kept.take_due(Microseconds(250)) == offsets()


def test_many_single_additions_are_few_runs() -> None:
    kept = TimedOffsets()
    for place in range(5000):
        kept.add(offsets(place), Microseconds(10_000 - place))
    assert len(kept._runs) <= timed._RUNS_MAX
    assert kept.take_due(Microseconds(5100)) == BitMap64(range(4900, 5000))
