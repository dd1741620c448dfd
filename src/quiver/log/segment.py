"""One segment of a log: a file of entries, and the indexes beside it.

Two sparse indexes find places in the segment; a third says what decides the delivery of its messages.

A ``Segment`` is only ever read up to ``size``, the bytes that were published to readers. Indexes of
a closed segment are read from disk when needed, verified, and rebuilt from the entries when they are
missing or damaged.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from quiver.log.delivery_index import DeliveryIndex, DeliverySpan, decides_delivery, fingerprint
from quiver.log.disk.disk import Disk
from quiver.log.files import DELIVERY, INDEX, SUFFIXES, TIME_INDEX, segment_path
from quiver.log.index import SparseIndex
from quiver.log.scan import corrupt, scan
from quiver.model.batch import StoredBatch
from quiver.model.envelope import columns_at, ends_by
from quiver.model.ids import Microseconds, Offset

_FIRST_ENTRY_BYTES = 4096
"""How much is mapped to see a segment's first entry, unless that is larger."""
_INTERVAL_US = 15_000_000
"""Entries this far apart in time are indexed, however close they are in the file."""
_MOMENTS_MAX = 1024
"""How many publish times a span has at most."""


class SegmentIndexes:
    """The indexes of one segment, filled side by side as entries arrive in order.

    ``delivery`` is ``None`` while it is not in memory: that of a closed segment is in its file, and of
    entries from before there were such indexes it is not known.
    """

    def __init__(self, interval_bytes: int) -> None:
        self.interval_bytes = interval_bytes
        self.offsets = SparseIndex()
        self.times = SparseIndex()
        self.delivery: DeliveryIndex | None = DeliveryIndex()

    @property
    def covered(self) -> int:
        return self.offsets.covered

    def add(self, entry: StoredBatch, position: int) -> None:
        assert position == self.covered, "entries are indexed in order, without gaps"
        indexed = self.offsets.positions
        if (
            not indexed
            or position - indexed[-1] >= self.interval_bytes
            or entry.append_time - self.times.keys[-1] >= _INTERVAL_US
        ):
            self.offsets.add(entry.base_offset, position)
            self.times.add(entry.append_time, position)
        self.offsets.covered = self.times.covered = position + entry.size()
        if decides_delivery(entry.columns):
            self._add_delivery(entry)

    def _add_delivery(self, entry: StoredBatch) -> None:
        self.offsets.delivery = None  # the file does not have it
        if self.delivery is not None:
            try:
                self.delivery.add(entry)
            except (pa.ArrowException, OSError):  # whoever reads the entry is told
                self.delivery = None

    @property
    def delivery_bytes(self) -> int:
        return 0 if self.delivery is None else self.delivery.size

    def before(self, position: int, offset: Offset) -> SegmentIndexes:
        """The same without the entries from ``position`` on, whose first offset is ``offset``.

        Readers may go on with this one.
        """
        kept = SegmentIndexes(self.interval_bytes)
        kept.offsets, kept.times = self.offsets.before(position), self.times.before(position)
        kept.delivery = None if self.delivery is None else self.delivery.before(offset)
        return kept

    def files(self, base_offset: Offset) -> dict[str, bytes]:
        """Names and contents of the index files of the segment that begins at ``base_offset``.

        The offset index names the delivery index, which is written before it.
        """
        offsets, times = f"{base_offset:020d}{INDEX}", f"{base_offset:020d}{TIME_INDEX}"
        delivery = b"" if self.delivery is None else self.delivery.encode()
        self.offsets.delivery = None if self.delivery is None else fingerprint(delivery)
        files = {f"{base_offset:020d}{DELIVERY}": delivery} if delivery else {}
        return files | {offsets: self.offsets.encode(offsets), times: self.times.encode(times)}

    def span(self, delivery: DeliveryIndex, start: Offset, stop: Offset) -> DeliverySpan:
        """What decides the delivery of the messages from ``start`` up to, but without, ``stop``."""
        known = self.times.keys[:]  # in this order, as entries may be added meanwhile
        bases, times = np.array(self.offsets.keys[: len(known)]), np.array(known)
        first = max(0, int(np.searchsorted(bases, start, side="right")) - 1)
        end = int(np.searchsorted(bases, stop))
        step = max(1, -(-(end - first) // _MOMENTS_MAX))
        return delivery.span(start, stop, bases[first:end:step], times[first:end:step])


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
        skips = None if holding is None else lambda view, at: ends_by(view, at, holding)
        found = scan(disk, self.path, position, limit, window_bytes, skips, bytes_max)
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
    indexes.offsets, indexes.times, indexes.delivery = offsets, times, None
    return indexes


def load_delivery(
    disk: Disk, folder: str, base_offset: Offset, indexes: SegmentIndexes
) -> DeliveryIndex | None:
    """The delivery index that belongs to these indexes; ``None`` unless it is there and intact."""
    expected = indexes.offsets.delivery
    if not expected:
        return None if expected is None else DeliveryIndex()
    try:
        data = disk.read(segment_path(folder, base_offset, DELIVERY))
    except OSError:  # missing, unreadable, or removed by retention a moment ago
        return None
    return DeliveryIndex.decode(data, expected)


def build_delivery(
    disk: Disk, segment: Segment, position: int, limit: int, window_bytes: int
) -> DeliveryIndex:
    """A delivery index made anew from the entries of a segment from ``position`` to ``limit``."""
    index = DeliveryIndex()
    for _, entry in scan(disk, segment.path, position, limit, window_bytes, _is_plain):
        index.add(entry)
    return index


def _is_plain(view: memoryview, at: int) -> bool:
    return not decides_delivery(columns_at(view, at))


def _read_index(disk: Disk, folder: str, name: str) -> SparseIndex | None:
    try:
        return SparseIndex.decode(name, disk.read(f"{folder}/{name}"))
    except OSError:  # missing, unreadable, or removed by retention a moment ago
        return None


def build_indexes(
    disk: Disk, segment: Segment, interval_bytes: int, window_bytes: int
) -> SegmentIndexes:
    """Sparse indexes made anew from the entries of a whole segment."""
    indexes = SegmentIndexes(interval_bytes)
    indexes.delivery = None
    for position, entry in segment.entries(disk, 0, window_bytes):
        indexes.add(entry, position)
    return indexes


def segment_of(segments: list[Segment], offset: Offset) -> Segment:
    """The one that holds ``offset``, of segments in order."""
    return segments[bisect_right(segments, offset, key=_base_offset) - 1]


def _base_offset(segment: Segment) -> Offset:
    return segment.base_offset
