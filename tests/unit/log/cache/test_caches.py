"""The caches of many logs stay within one budget, and give it back when a log is closed."""

from __future__ import annotations

from quiver.log.cache.cache_budget import CacheBudget
from quiver.log.cache.hot_tail import ENTRY_OVERHEAD, HotTail
from quiver.log.cache.recent_reads import RecentReads
from quiver.model.batch import StoredBatch
from quiver.model.envelope import store_batch
from quiver.model.ids import LeaderEpoch, Microseconds, Offset
from tests.unit.log.small_logs import batch


def entry_at(offset: int, size: int = 1000) -> StoredBatch:
    return store_batch(
        batch(size),
        base_offset=Offset(offset),
        epoch=LeaderEpoch(0),
        append_time=Microseconds(0),
        durable_offset=Offset(0),
    )


def test_a_busy_tail_takes_memory_from_one_that_rests() -> None:
    charge = entry_at(0).size() + ENTRY_OVERHEAD
    budget = CacheBudget(10 * charge)
    resting, busy = HotTail(1 << 20, budget), HotTail(1 << 20, budget)
    for offset in range(8):
        resting.add(entry_at(offset))
    for offset in range(9):
        busy.add(entry_at(offset))
    assert budget.total == 10 * charge
    assert busy.read(Offset(0), 1) is not None
    assert resting.read(Offset(6), 1) is None
    assert resting.read(Offset(7), 1) is not None


def test_a_tail_counts_what_falls_out_by_its_own_limit() -> None:
    budget = CacheBudget(1 << 30)
    tail = HotTail(3 * entry_at(0).size(), budget)
    for offset in range(50):
        tail.add(entry_at(offset))
    assert budget.total == 3 * (entry_at(0).size() + ENTRY_OVERHEAD)
    tail.add(entry_at(50, size=100_000))  # larger than all that it may hold
    assert budget.total == 0
    tail.add(entry_at(51))
    assert tail.read(Offset(51), 1) is not None


def test_a_tail_that_is_cleared_gives_everything_back_and_can_be_used_again() -> None:
    budget = CacheBudget(1 << 30)
    tail = HotTail(1 << 20, budget)
    tail.add(entry_at(0))
    tail.clear()
    tail.clear()
    assert budget.total == 0
    tail.add(entry_at(7))
    assert tail.read(Offset(7), 1) is not None


def test_recent_reads_of_many_logs_stay_within_the_budget() -> None:
    budget = CacheBudget(300_000)
    logs = [RecentReads(budget) for _ in range(20)]
    for log in logs:
        for offset in range(5):
            log.keep([entry_at(offset)])
    assert budget.total <= 300_000
    assert logs[-1].read(Offset(4), 1) is not None
    assert logs[0].read(Offset(4), 1) is None
    for log in logs:
        log.clear()
    assert budget.total == 0
