"""The newest entries of a log, kept in memory within a bound: readers at the tail touch no disk."""

from __future__ import annotations

from bisect import bisect_right

from quiver.model.batch import StoredBatch
from quiver.model.ids import Offset


class HotTail:
    """A run of consecutive entries that ends at the log's end; the oldest fall out first."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._entries: list[StoredBatch] = []
        self._first = 0
        self._bytes = 0

    def add(self, entry: StoredBatch) -> None:
        assert not self._entries or entry.base_offset == self._entries[-1].next_offset
        self._entries.append(entry)
        self._bytes += entry.size()
        while self._bytes > self._bytes_max:
            self._bytes -= self._entries[self._first].size()
            self._entries[self._first] = entry  # frees the old one; compacted below
            self._first += 1
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
