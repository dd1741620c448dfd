"""The end of what two logs have in common."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quiver.broker.mirror.common_end import CommonEnd, Comparison
from quiver.model.ids import Offset


def found(ends: list[int], same: int, kept_from: int = 0) -> tuple[int, int]:
    """The common end, and how many entries were compared.

    The log has an entry up to each of ``ends``. The other has the first ``same`` of them, but for those
    that begin before ``kept_from``.
    """
    begins = [0, *ends[:-1]]
    search = CommonEnd(Offset(0), Offset(ends[-1] if ends else 0))
    compared = 0
    while search.probe is not None:
        compared += 1
        place = next(at for at, end in enumerate(ends) if search.probe < end)
        answer = Comparison.SAME if place < same else Comparison.DIFFERENT
        if begins[place] < kept_from:
            answer = Comparison.UNKNOWN
        search.on_compared(Offset(begins[place]), Offset(ends[place]), answer)
    return search.offset, compared


def test_logs_that_are_the_same_need_one_comparison() -> None:
    assert found([10, 20, 30], same=3) == (30, 1)


def test_an_empty_log_needs_none() -> None:
    assert found([], same=0) == (0, 0)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=60), st.data())
def test_the_last_common_entry_is_found_with_few_comparisons(
    counts: list[int], data: st.DataObject
) -> None:
    ends = [sum(counts[: at + 1]) for at in range(len(counts))]
    same = data.draw(st.integers(0, len(ends)))
    end, compared = found(ends, same)
    assert end == ([0, *ends][same])
    assert compared <= ends[-1].bit_length() + 2


def test_what_the_other_log_does_not_have_any_more_is_common_if_something_later_is() -> None:
    assert found([10, 20, 30, 40], same=3, kept_from=20)[0] == 30


def test_nothing_is_common_if_nothing_can_be_compared() -> None:
    assert found([10, 20, 30], same=3, kept_from=100)[0] == 0
    assert found([10, 20, 30], same=1, kept_from=10)[0] == 0
