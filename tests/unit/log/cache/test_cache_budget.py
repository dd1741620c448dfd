"""One budget for all caches: whoever grew longest ago gives back first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quiver.log.cache.cache_budget import CacheBudget


class Pieces:
    """A cache of pieces, each of its own size."""

    def __init__(self, budget: CacheBudget) -> None:
        self._budget = budget
        self.sizes: list[int] = []

    def add(self, size: int) -> None:
        self.sizes.append(size)
        self._budget.grow(self, size)

    def shrink(self, size: int) -> int:
        freed = 0
        while freed < size and self.sizes:
            freed += self.sizes.pop(0)
        return freed


STEPS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(1, 60), st.integers(-80, 80)), max_size=60
)


@given(st.integers(0, 200), STEPS)
def test_the_caches_never_hold_more_than_the_budget_leaves_them(
    bytes_max: int, steps: list[tuple[int, int, int]]
) -> None:
    budget = CacheBudget(bytes_max, 150)
    caches, reserved = [Pieces(budget) for _ in range(5)], 0
    for index, size, wanted in steps:
        caches[index].add(size)
        more = max(wanted, -reserved)
        reserved += more
        budget.reserve(more)
        held = sum(sum(cache.sizes) for cache in caches)
        assert held == budget.total <= max(0, min(bytes_max, 150 - reserved))
        assert len(budget) == sum(bool(cache.sizes) for cache in caches)


def test_the_cache_that_grew_longest_ago_gives_back_first_and_no_more_than_needed() -> None:
    budget = CacheBudget(100)
    old, new = Pieces(budget), Pieces(budget)
    for _ in range(4):
        old.add(10)
    for _ in range(6):
        new.add(10)
    new.add(10)
    assert (len(old.sizes), len(new.sizes)) == (3, 7)
    old.add(10)  # it has grown now, so the other one is the next to give back
    assert (len(old.sizes), len(new.sizes)) == (4, 6)


def test_requests_take_memory_from_caches_and_leave_it_to_them_again() -> None:
    budget = CacheBudget(100)
    cache = Pieces(budget)
    for _ in range(10):
        cache.add(10)
    budget.reserve(70)
    assert sum(cache.sizes) == 30
    budget.reserve(-70)
    for _ in range(10):
        cache.add(10)
    assert sum(cache.sizes) == 100


def test_a_cache_that_is_gone_holds_nothing() -> None:
    budget = CacheBudget(100)
    cache = Pieces(budget)
    cache.add(50)
    budget.forget(cache)
    budget.forget(cache)
    assert (budget.total, len(budget)) == (0, 0)
