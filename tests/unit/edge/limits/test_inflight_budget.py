"""Bodies of unanswered requests of all connections have one bound."""

from __future__ import annotations

from quiver.edge.limits.inflight_budget import InflightBudget
from quiver.log.cache.cache_budget import CacheBudget


def test_it_is_full_for_as_long_as_too_much_is_unanswered() -> None:
    budget = InflightBudget(100)
    budget.take(60)
    assert not budget.is_full
    budget.take(60)
    assert budget.is_full
    budget.give_back(60)
    assert not budget.is_full
    assert budget.taken == 60


def test_requests_take_their_memory_from_the_caches() -> None:
    caches = CacheBudget(100)
    budget = InflightBudget(50, caches)
    budget.take(30)
    assert caches.room == 70
    budget.give_back(30)
    assert caches.room == 100
