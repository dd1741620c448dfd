"""The copy of one partition's log: what to ask the source for, and what to do about its answers. Pure.

Invariant: what is stored is a prefix of the source's log, but for gaps that the source reported. Entries
follow each other without a hole. The first fetch names the last entry, and the following ones the epoch in
which it was compared, so that a source that lost messages is found out before anything of it is stored.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quiver.errors import CorruptLog
from quiver.model.batch import StoredBatch
from quiver.model.ids import Offset
from quiver.model.mirror.entry_mark import EntryMark

FETCH_BYTES_MIN, FETCH_BYTES_MAX = 1 << 20, 16 << 20
"""How much one fetch brings: the least while a copy is current, up to the most while it is behind."""
NO_EPOCH = -1


class Received(msgspec.Struct, frozen=True):
    """What to store next: first offsets without messages, if there are any, then entries."""

    gap: tuple[Offset, Offset] | None
    """Offsets that the source has no more, from the first up to, but without, the second."""
    entries: Sequence[StoredBatch]


class LogCopy:
    """``end`` is where the copy ends, and ``last`` its last entry, if it has one.

    ``on_answer`` says where the next fetch begins, as soon as an answer has come. ``on_entries`` then says
    what to store of it.
    """

    def __init__(self, end: Offset, last: EntryMark | None) -> None:
        self.end = end
        """Where what is to be stored ends."""
        self.next_fetch = end
        self.last = last
        """To be compared by the first fetch. Those that follow it continue what was compared."""
        self.epoch = NO_EPOCH
        """Of the source's leader, once it has answered."""
        self.source_start = Offset(0)
        self.source_end: Offset | None = None
        self.bytes_max = FETCH_BYTES_MIN

    @property
    def is_behind(self) -> bool:
        """Whether the source has more, as far as is known."""
        return self.source_end is None or self.next_fetch < self.source_end

    def on_answer(
        self, start: Offset, end: Offset, read_to: Offset, epoch: int, left_bytes: int
    ) -> None:
        """An answer has come: the next fetch begins where it ends."""
        if read_to < self.next_fetch or end < read_to:
            raise self._wrong(read_to)
        self.next_fetch, self.last, self.epoch = read_to, None, epoch
        self.source_start, self.source_end = start, end
        self.bytes_max = min(FETCH_BYTES_MAX, max(FETCH_BYTES_MIN, left_bytes))

    def on_entries(
        self, start: Offset, read_to: Offset, entries: Sequence[StoredBatch]
    ) -> Received:
        """What to store of an answer; ``CorruptLog`` if it does not follow on what was received."""
        first = entries[0].base_offset if entries else read_to
        if first < self.end or (first > self.end and start <= self.end):
            raise self._wrong(first)
        gap = (self.end, first) if first > self.end else None
        next_offset = first
        for entry in entries:
            if entry.base_offset != next_offset:
                raise self._wrong(entry.base_offset)
            next_offset = entry.next_offset
        if next_offset != read_to:
            raise self._wrong(next_offset)
        self.end = next_offset
        return Received(gap, entries)

    def _wrong(self, offset: Offset) -> CorruptLog:
        return CorruptLog(
            f"the source sent offset {offset:,} where {self.end:,} comes next", position=offset
        )
