"""What was read from the files a moment ago: several readers of a log often want the same entries.

A receive takes a part of an entry, and the next receive the rest; many subscriptions follow each
other through the same messages. The entries are views of mapped files, so keeping them copies nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

from quiver.log.hot_tail import base_offset_of, entries_from
from quiver.model.batch import StoredBatch
from quiver.model.ids import Offset

_RUNS_MAX = 4
_BYTES_MAX = 2 << 20
_ENTRIES_MAX = 2048
"""Of each run: small entries take more memory than their bytes."""


class RecentReads:
    """A few runs of consecutive entries; the one that was read first falls out first."""

    def __init__(self) -> None:
        self._runs: deque[list[StoredBatch]] = deque(maxlen=_RUNS_MAX)

    def keep(self, entries: list[StoredBatch]) -> None:
        if entries and len(entries) <= _ENTRIES_MAX and _size(entries) <= _BYTES_MAX:
            self._runs.append(entries)

    def read(self, offset: Offset, bytes_max: int) -> list[StoredBatch] | None:
        """Entries from the one that holds ``offset`` on; ``None`` if that one is not here."""
        for run in self._runs:
            if run[0].base_offset <= offset < run[-1].next_offset:
                place = bisect_right(run, offset, key=base_offset_of) - 1
                return entries_from(run, place, bytes_max)
        return None


def _size(entries: list[StoredBatch]) -> int:
    return sum(entry.size() for entry in entries)
