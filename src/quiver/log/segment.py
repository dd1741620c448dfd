"""One segment of a log: a file of entries, and the sparse indexes that find places in it.

A ``Segment`` is only ever read up to ``size``, the bytes that were published to readers. Indexes of
a closed segment are read from disk when needed, verified, and rebuilt from the entries when they are
missing or damaged.
"""

from __future__ import annotations

from quiver.log.disk import Disk
from quiver.log.files import INDEX, SUFFIXES, TIME_INDEX, segment_path
from quiver.log.index import SparseIndex
from quiver.log.scan import scan
from quiver.model.batch import StoredBatch
from quiver.model.ids import Microseconds, Offset


class SegmentIndexes:
    """The two sparse indexes of one segment, filled side by side as entries arrive in order."""

    def __init__(self, interval_bytes: int) -> None:
        self.interval_bytes = interval_bytes
        self.offsets = SparseIndex()
        self.times = SparseIndex()
        self.last_time = Microseconds(0)

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
        self.last_time = entry.append_time

    def cut(self, position: int) -> None:
        """Forget everything at or after ``position``."""
        self.offsets.cut(position)
        self.times.cut(position)

    def files(self, base_offset: Offset) -> dict[str, bytes]:
        """Names and contents of the index files of the segment that begins at ``base_offset``."""
        return {
            f"{base_offset:020d}{INDEX}": self.offsets.encode(),
            f"{base_offset:020d}{TIME_INDEX}": self.times.encode(),
        }


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

    def first_append_time(self, disk: Disk) -> Microseconds | None:
        """Append time of its first entry; ``None`` while it is empty."""
        if self.first_time is None and self.size:
            for _, entry in scan(disk, self.path, 0, self.size, 4096):
                self.first_time = entry.append_time
                break
        return self.first_time


def load_indexes(
    disk: Disk, folder: str, base_offset: Offset, interval_bytes: int
) -> SegmentIndexes | None:
    """The indexes of a segment as they are on disk; ``None`` unless both are there and intact."""
    loaded = []
    for suffix in (INDEX, TIME_INDEX):
        path = segment_path(folder, base_offset, suffix)
        index = SparseIndex.decode(disk.read(path)) if disk.exists(path) else None
        if index is None:
            return None
        loaded.append(index)
    offsets, times = loaded
    if offsets.covered != times.covered or offsets.positions != times.positions:
        return None
    indexes = SegmentIndexes(interval_bytes)
    indexes.offsets, indexes.times = offsets, times
    return indexes


def build_indexes(
    disk: Disk, segment: Segment, interval_bytes: int, window_bytes: int
) -> SegmentIndexes:
    """Indexes made anew from the entries of a whole segment."""
    indexes = SegmentIndexes(interval_bytes)
    for position, entry in scan(disk, segment.path, 0, segment.size, window_bytes):
        indexes.add(entry, position)
    return indexes
