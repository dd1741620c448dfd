"""The copy of one partition's log: what to ask the source for, and what to do about its answers. Pure.

Invariant: what was received is a prefix of the source's log, but for gaps that the source reported. Entries
follow each other without a hole, and each fetch names the last one, so that a source that lost messages is
found out before anything of it is stored.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quiver.errors import CorruptLog
from quiver.model.batch import StoredBatch
from quiver.model.ids import Offset
from quiver.model.mirror.entry_mark import EntryMark, mark_of

FETCH_BYTES_MIN, FETCH_BYTES_MAX = 1 << 20, 16 << 20
"""How much one fetch brings: the least while a copy is current, up to the most while it is behind."""
NO_EPOCH = -1


class Received(msgspec.Struct, frozen=True):
    """What to store next: first offsets without messages, if there are any, then entries."""

    gap: tuple[Offset, Offset] | None
    """Offsets that the source has no more, from the first up to, but without, the second."""
    entries: Sequence[StoredBatch]


class LogCopy:
    """``end`` is where the copy ends, and ``last`` its last entry, if it has one."""

    def __init__(self, end: Offset, last: EntryMark | None) -> None:
        self.end = end
        """Where what was received ends."""
        self.last = last
        self.epoch = NO_EPOCH
        """Of the source's leader, once it has answered."""
        self.source_start = Offset(0)
        self.source_end: Offset | None = None
        self.bytes_max = FETCH_BYTES_MIN

    @property
    def is_current(self) -> bool:
        """Whether everything was received that the source had when it last answered."""
        return self.source_end is not None and self.end >= self.source_end

    @property
    def lag(self) -> int | None:
        """How many offsets of the source were not received when it last answered."""
        return None if self.source_end is None else max(0, self.source_end - self.end)

    def on_answer(
        self, start: Offset, end: Offset, epoch: int, entries: Sequence[StoredBatch], size: int
    ) -> Received:
        """What to store of an answer; ``CorruptLog`` if it does not follow on what was received."""
        first = entries[0].base_offset if entries else max(start, self.end)
        gap = None
        if first > self.end:
            if start < first and entries and start <= self.end:
                raise self._wrong(first)
            gap = self.end, first
        next_offset = first
        for entry in entries:
            if entry.base_offset != next_offset:
                raise self._wrong(entry.base_offset)
            next_offset = entry.next_offset
        if first < self.end:
            raise self._wrong(first)
        self.end, self.epoch = next_offset, epoch
        self.source_start, self.source_end = start, max(end, next_offset)
        if entries:
            self.last = mark_of(entries[-1])
        elif gap is not None:
            self.last = None
        self._adapt(size)
        return Received(gap, entries)

    def _adapt(self, size: int) -> None:
        """Ask for more at once while there is more than that."""
        if self.is_current:
            self.bytes_max = FETCH_BYTES_MIN
        elif size >= self.bytes_max // 2:
            self.bytes_max = min(FETCH_BYTES_MAX, 2 * self.bytes_max)

    def _wrong(self, offset: Offset) -> CorruptLog:
        return CorruptLog(
            f"the source sent offset {offset:,} where {self.end:,} comes next", position=offset
        )
