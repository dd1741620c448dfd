"""What was read from the files a moment ago: several readers of a log often want the same entries.

A receive takes a part of an entry, and the next receive the rest; many subscriptions follow each
other through the same messages. The entries are views of mapped files, so keeping them copies nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

from quiver.log.cache.cache_budget import CacheBudget
from quiver.log.cache.hot_tail import ENTRY_OVERHEAD, base_offset_of, entries_from
from quiver.model.batch import StoredBatch
from quiver.model.ids import Offset

_RUNS_MAX = 4
_BYTES_MAX = 2 << 20
_ENTRIES_MAX = 2048
"""Of each run: small entries take more memory than their bytes."""
_RUN_BYTES_MIN = 64 << 10
"""What a run counts for at least: each keeps a mapped piece of a file, and a file open with it."""


class RecentReads:
    """A few runs of consecutive entries; the one that was read first falls out first."""

    def __init__(self, budget: CacheBudget | None = None) -> None:
        self._budget = budget
        self._runs: deque[list[StoredBatch]] = deque()

    def keep(self, entries: list[StoredBatch]) -> None:
        if not entries or len(entries) > _ENTRIES_MAX or _size(entries) > _BYTES_MAX:
            return
        self._runs.append(entries)
        freed = _charge(self._runs.popleft()) if len(self._runs) > _RUNS_MAX else 0
        if self._budget is not None:
            if freed:
                self._budget.give_back(self, freed)
            self._budget.grow(self, _charge(entries))

    def shrink(self, size: int) -> int:
        """Let go of the oldest runs; how many bytes that gives back."""
        freed = 0
        while freed < size and self._runs:
            freed += _charge(self._runs.popleft())
        return freed

    def clear(self) -> None:
        """Let go of everything."""
        if self._runs:
            self._runs.clear()
            if self._budget is not None:
                self._budget.forget(self)

    def read(self, offset: Offset, bytes_max: int) -> list[StoredBatch] | None:
        """Entries from the one that holds ``offset`` on; ``None`` if that one is not here."""
        for run in self._runs:
            if run[0].base_offset <= offset < run[-1].next_offset:
                place = bisect_right(run, offset, key=base_offset_of) - 1
                return entries_from(run, place, bytes_max)
        return None


def _charge(entries: list[StoredBatch]) -> int:
    return max(_RUN_BYTES_MIN, _size(entries) + len(entries) * ENTRY_OVERHEAD)


def _size(entries: list[StoredBatch]) -> int:
    return sum(entry.size() for entry in entries)
