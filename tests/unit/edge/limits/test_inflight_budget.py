"""Unanswered requests of all connections have one bound."""

from __future__ import annotations

from quiver.edge.limits.inflight_budget import InflightBudget
from quiver.log.cache.cache_budget import CacheBudget


def test_whoever_waits_is_woken_once_when_there_is_room() -> None:
    budget, woken = InflightBudget(100), list[str]()
    budget.take(60)
    budget.take(60)
    assert budget.is_full
    for name in "aab":
        budget.wait(name, lambda name=name: woken.append(name))  # type: ignore[misc]
    budget.wait("gone", lambda: woken.append("gone"))
    budget.leave("gone")
    budget.give_back(10)
    assert not woken
    budget.give_back(50)
    assert not budget.is_full
    assert woken == ["a", "b"]
    budget.take(100)
    budget.give_back(100)
    assert woken == ["a", "b"]


def test_requests_take_their_memory_from_the_caches() -> None:
    caches = CacheBudget(100)
    budget = InflightBudget(50, caches)
    budget.take(30)
    assert caches.room == 70
    budget.give_back(30)
    assert caches.room == 100
