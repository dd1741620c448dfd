"""The newest entries of a log, in memory, for whoever reads at its end."""

from __future__ import annotations

from bisect import bisect_right

from quiver.log.cache.cache_budget import CacheBudget
from quiver.model.batch import StoredBatch
from quiver.model.ids import Offset

ENTRY_OVERHEAD = 512
"""What an entry takes in memory besides its bytes."""


class HotTail:
    """A run of consecutive entries that ends at the log's end; the oldest fall out first.

    It holds ``bytes_max`` at most, and less where the budget is needed by others.
    """

    def __init__(self, bytes_max: int, budget: CacheBudget | None = None) -> None:
        self._bytes_max = bytes_max
        self._budget = budget
        self._entries: list[StoredBatch] = []
        self._first = 0
        self._bytes = 0

    def add(self, entry: StoredBatch) -> None:
        assert not self._entries or entry.base_offset == self._entries[-1].next_offset
        size = entry.size()
        if size > self._bytes_max:
            self.clear()
            return
        self._entries.append(entry)
        self._bytes += size
        freed = self._drop_until(self._bytes_max)
        if self._budget is not None:
            if freed:
                self._budget.give_back(self, freed)
            self._budget.grow(self, size + ENTRY_OVERHEAD)

    def shrink(self, size: int) -> int:
        """Let go of the oldest entries; how many bytes that gives back."""
        freed = 0
        while freed < size and self._first < len(self._entries):
            freed += self._drop_first()
        self._compact()
        return freed

    def clear(self) -> None:
        """Let go of everything."""
        if self._entries:
            self._entries, self._first, self._bytes = [], 0, 0
            if self._budget is not None:
                self._budget.forget(self)

    def _drop_until(self, size: int) -> int:
        freed = 0
        while self._bytes > size:
            freed += self._drop_first()
        self._compact()
        return freed

    def _drop_first(self) -> int:
        size = self._entries[self._first].size()
        self._bytes -= size
        self._entries[self._first] = self._entries[-1]  # frees the old one; compacted later
        self._first += 1
        return size + ENTRY_OVERHEAD

    def _compact(self) -> None:
        if self._first > len(self._entries) // 2:
            del self._entries[: self._first]
            self._first = 0

    def read(self, offset: Offset, bytes_max: int) -> list[StoredBatch] | None:
        """Entries from the one that holds ``offset`` on; ``None`` if that one is not in memory."""
        entries, first = self._entries, self._first
        if first == len(entries) or offset < entries[first].base_offset:
            return None
        place = bisect_right(entries, offset, lo=first, key=base_offset_of) - 1
        return entries_from(entries, place, bytes_max)


def entries_from(entries: list[StoredBatch], place: int, bytes_max: int) -> list[StoredBatch]:
    """The entry at ``place`` and those after it, about ``bytes_max``."""
    end, taken = place, 0
    while end < len(entries) and (end == place or taken + entries[end].size() <= bytes_max):
        taken += entries[end].size()
        end += 1
    return entries[place:end]


def base_offset_of(entry: StoredBatch) -> Offset:
    return entry.base_offset
