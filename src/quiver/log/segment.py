"""One segment of a log: a file of entries, and the sparse indexes that find places in it.

A ``Segment`` is only ever read up to ``size``, the bytes that were published to readers. Indexes of
a closed segment are read from disk when needed, verified, and rebuilt from the entries when they are
missing or damaged.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress

from quiver.errors import CorruptLog, UnsupportedFormat
from quiver.log.disk.disk import Disk
from quiver.log.files import INDEX, SUFFIXES, TIME_INDEX, segment_path
from quiver.log.index import SparseIndex
from quiver.log.retention import SegmentFacts
from quiver.log.scan import corrupt, scan
from quiver.model.batch import StoredBatch
from quiver.model.ids import Microseconds, Offset

_FIRST_ENTRY_BYTES = 4096
"""How much is mapped to see a segment's first entry, unless that is larger."""


class SegmentIndexes:
    """The two sparse indexes of one segment, filled side by side as entries arrive in order."""

    def __init__(self, interval_bytes: int) -> None:
        self.interval_bytes = interval_bytes
        self.offsets = SparseIndex()
        self.times = SparseIndex()

    @property
    def covered(self) -> int:
        return self.offsets.covered

    def add(self, entry: StoredBatch, position: int) -> None:
        assert position == self.covered, "entries are indexed in order, without gaps"
        indexed = self.offsets.positions
        if not indexed or position - indexed[-1] >= self.interval_bytes:
            self.offsets.add(entry.base_offset, position)
            self.times.add(entry.append_time, position)
        self.offsets.covered = self.times.covered = position + entry.size()

    def before(self, position: int) -> SegmentIndexes:
        """The same without anything at or after ``position``; readers may go on with this one."""
        kept = SegmentIndexes(self.interval_bytes)
        kept.offsets, kept.times = self.offsets.before(position), self.times.before(position)
        return kept

    def files(self, base_offset: Offset) -> dict[str, bytes]:
        """Names and contents of the index files of the segment that begins at ``base_offset``."""
        offsets, times = f"{base_offset:020d}{INDEX}", f"{base_offset:020d}{TIME_INDEX}"
        return {offsets: self.offsets.encode(offsets), times: self.times.encode(times)}


class Segment:
    """A file of entries from ``base_offset`` on, readable up to ``size`` bytes."""

    __slots__ = ("base_offset", "first_time", "folder", "size")

    def __init__(self, folder: str, base_offset: Offset, size: int) -> None:
        self.folder = folder
        self.base_offset = base_offset
        self.size = size
        self.first_time: Microseconds | None = None

    @property
    def path(self) -> str:
        return segment_path(self.folder, self.base_offset)

    @property
    def paths(self) -> list[str]:
        """Every file that belongs to it."""
        return [segment_path(self.folder, self.base_offset, suffix) for suffix in SUFFIXES]

    def entries(
        self,
        disk: Disk,
        position: int,
        window_bytes: int,
        holding: Offset | None = None,
        bytes_max: int | None = None,
    ) -> Iterator[tuple[int, StoredBatch]]:
        """Its entries from ``position`` on, or from the one after it that holds offset ``holding``.

        ``CorruptLog`` unless they are intact and each follows the one before. With ``bytes_max``
        it ends before the entry that would make it more than that, but not before the first.
        """
        earliest = self.base_offset
        expected = earliest if holding is None and position == 0 else holding
        limit = self.size
        found = scan(disk, self.path, position, limit, window_bytes, holding, bytes_max)
        for at, entry in found:
            if expected is None:
                expected = entry.base_offset
            if not earliest <= entry.base_offset <= expected < entry.next_offset:
                raise corrupt(self.path, at, f"offset {expected:,} expected here")
            yield at, entry
            earliest = expected = entry.next_offset
        if holding is not None and holding == expected:
            raise corrupt(self.path, limit, f"offset {holding:,} expected here")

    def first_append_time(self, disk: Disk) -> Microseconds | None:
        """Append time of its first entry; ``None`` while it is empty."""
        if self.first_time is None and self.size:
            for _, entry in self.entries(disk, 0, _FIRST_ENTRY_BYTES):
                self.first_time = entry.append_time
                break
        return self.first_time


def load_indexes(
    disk: Disk, folder: str, base_offset: Offset, interval_bytes: int
) -> SegmentIndexes | None:
    """The indexes of a segment as they are on disk; ``None`` unless both are there and intact."""
    offsets, times = (
        _read_index(disk, folder, f"{base_offset:020d}{suffix}") for suffix in (INDEX, TIME_INDEX)
    )
    if offsets is None or times is None:
        return None
    if offsets.covered != times.covered or offsets.positions != times.positions:
        return None
    indexes = SegmentIndexes(interval_bytes)
    indexes.offsets, indexes.times = offsets, times
    return indexes


def _read_index(disk: Disk, folder: str, name: str) -> SparseIndex | None:
    try:
        return SparseIndex.decode(name, disk.read(f"{folder}/{name}"))
    except OSError:  # missing, unreadable, or removed by retention a moment ago
        return None


def build_indexes(
    disk: Disk, segment: Segment, interval_bytes: int, window_bytes: int
) -> SegmentIndexes:
    """Indexes made anew from the entries of a whole segment."""
    indexes = SegmentIndexes(interval_bytes)
    for position, entry in segment.entries(disk, 0, window_bytes):
        indexes.add(entry, position)
    return indexes


def segment_of(segments: list[Segment], offset: Offset) -> Segment:
    """The one that holds ``offset``, of segments in order."""
    return segments[bisect_right(segments, offset, key=_base_offset) - 1]


def _base_offset(segment: Segment) -> Offset:
    return segment.base_offset


def segment_facts(
    segments: list[Segment], disk: Disk, end: Offset, newest: Microseconds
) -> list[SegmentFacts]:
    """What retention goes by, of segments in order; the log ends at ``end``, and ``newest`` is last."""
    facts: list[SegmentFacts] = []
    for segment in reversed(segments):
        facts.append(
            SegmentFacts(
                base_offset=segment.base_offset,
                next_offset=end,
                size=segment.size,
                newest=newest,
            )
        )
        end = segment.base_offset
        with suppress(CorruptLog, UnsupportedFormat):  # what cannot be read may go too
            newest = segment.first_append_time(disk) or newest
    return facts[::-1]
