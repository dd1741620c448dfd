"""Finds entries in the segments of a log, by offset and by time, and what decides their delivery.

The newest segment's indexes grow with each append. Those of closed segments are loaded from their
files, or built again if these are missing or damaged; a few stay in memory. Other threads may read
while the log is written to.
"""

from __future__ import annotations

from bisect import bisect_right

import msgspec

from quiver.errors import CorruptLog, UnsupportedFormat
from quiver.log.delivery_index import DeliveryIndex, DeliverySpan
from quiver.log.disk.disk import Disk
from quiver.log.scan import corrupt
from quiver.log.segment import (
    Segment,
    SegmentIndexes,
    build_delivery,
    build_indexes,
    load_delivery,
    load_indexes,
)
from quiver.log.settings import LogSettings
from quiver.model.batch import StoredBatch
from quiver.model.ids import Microseconds, Offset

_BUILD_BYTES = 32 << 20
"""How much of a segment without a delivery index is read at once."""
_INDEXES_KEPT = 16
"""How many closed segments' indexes stay in memory."""


class SegmentReader:
    """``newest`` are the indexes of the segment at ``newest_base``, which is appended to."""

    def __init__(
        self, disk: Disk, settings: LogSettings, newest_base: Offset, newest: SegmentIndexes
    ) -> None:
        self.settings = settings
        self.newest_base = newest_base
        self.newest = newest
        self._disk = disk
        self._closed: dict[Offset, SegmentIndexes] = {}

    @property
    def window_bytes(self) -> int:
        """How much to map in order to find one entry from a place in an index on."""
        return self.settings.index_interval_bytes + 4096

    # ------------------------------------------------------------------ entries

    def read(self, segment: Segment, offset: Offset, bytes_max: int) -> list[StoredBatch]:
        """Entries from the one that holds ``offset`` on, about ``bytes_max``, at least one."""
        position = self.indexes_of(segment).offsets.floor(offset)
        window = min(self.settings.window_bytes, bytes_max + self.settings.index_interval_bytes)
        entries: list[StoredBatch] = []
        found = segment.entries(self._disk, position, window, holding=offset, bytes_max=bytes_max)
        try:
            for _, entry in found:
                entries.append(entry)
        except (CorruptLog, UnsupportedFormat):
            if not entries:
                raise  # else whoever reads on from here is told
        return entries

    def locate(self, segment: Segment, offset: Offset) -> tuple[int, Offset]:
        """Position and base offset of the entry that holds ``offset``."""
        start = self.indexes_of(segment).offsets.floor(offset)
        window = self.settings.window_bytes
        position, entry = next(segment.entries(self._disk, start, window, holding=offset))
        return position, entry.base_offset

    def first_at(
        self, segments: list[Segment], time: Microseconds, latest: Microseconds
    ) -> Offset | None:
        """The base offset of the first entry appended at or after ``time``.

        ``latest`` is when a segment without entries begins.
        """

        def began(segment: Segment) -> int:
            first = segment.first_append_time(self._disk)
            return latest if first is None else first

        place = bisect_right(segments, time - 1, key=began) - 1
        expected: Offset | None = None
        for segment in segments[max(0, place) :]:
            if expected not in (None, segment.base_offset):
                raise corrupt(segment.path, 0, f"offset {expected:,} expected here")
            expected = segment.base_offset
            position = self.indexes_of(segment).times.below(time)
            for _, entry in segment.entries(self._disk, position, self.window_bytes):
                if entry.append_time >= time:
                    return entry.base_offset
                expected = entry.next_offset
        return None

    # ------------------------------------------------------------------ what decides delivery

    def span_in_memory(self, segment: Segment, offset: Offset, stop: Offset) -> DeliverySpan | None:
        """What decides the delivery of messages of a segment; ``None`` if that needs the disk."""
        is_newest = segment.base_offset == self.newest_base
        indexes = self.newest if is_newest else self._closed.get(segment.base_offset)
        if indexes is None or indexes.delivery is None:
            return None
        return indexes.span(indexes.delivery, offset, stop)

    def span(self, segment: Segment, offset: Offset, stop: Offset) -> DeliverySpan:
        """The same from the index beside the segment, or else from some of its entries."""
        indexes, delivery = self.indexes_of(segment), self.delivery_of(segment)
        if delivery is not None:
            return indexes.span(delivery, offset, stop)
        start, limit = indexes.offsets.floor(offset), segment.size
        beyond = indexes.offsets.beyond(start + _BUILD_BYTES)
        if beyond is not None and beyond[1] < limit:
            stop, limit = min(stop, Offset(beyond[0])), beyond[1]
        delivery = build_delivery(self._disk, segment, start, limit, self.settings.window_bytes)
        return msgspec.structs.replace(indexes.span(delivery, offset, stop), is_indexed=False)

    def delivery_of(self, segment: Segment) -> DeliveryIndex | None:
        """The delivery index of a segment, unless it would have to be built."""
        indexes = self.indexes_of(segment)
        if indexes.delivery is not None:
            return indexes.delivery
        return load_delivery(self._disk, segment.folder, segment.base_offset, indexes)

    def settle(self) -> None:
        """The index files of closed segments are written: what only these need leaves memory."""
        for indexes in list(self._closed.values()):
            indexes.delivery = None

    # ------------------------------------------------------------------ indexes

    def indexes_of(self, segment: Segment) -> SegmentIndexes:
        if segment.base_offset == self.newest_base:
            return self.newest
        known = self._closed.get(segment.base_offset)
        if known is not None and known.covered >= segment.size:
            return known
        interval = self.settings.index_interval_bytes
        indexes = load_indexes(self._disk, segment.folder, segment.base_offset, interval)
        if indexes is None or indexes.covered != segment.size:
            indexes = build_indexes(self._disk, segment, interval, self.settings.window_bytes)
        self._remember(segment.base_offset, indexes)
        return indexes

    def position_near(self, segment: Segment, offset: Offset) -> int:
        """A position at or before the entry that holds ``offset``: 0 if no index is there to tell."""
        base, interval = segment.base_offset, self.settings.index_interval_bytes
        indexes = self.newest if base == self.newest_base else self._closed.get(base)
        if indexes is None:
            indexes = load_indexes(self._disk, segment.folder, base, interval)
        return 0 if indexes is None else indexes.offsets.floor(offset)

    def roll(self, base_offset: Offset) -> None:
        """Another segment is appended to from now on."""
        self._remember(self.newest_base, self.newest)
        self.newest = SegmentIndexes(self.settings.index_interval_bytes)
        self.newest_base = base_offset

    def cut(self, base_offset: Offset, indexes: SegmentIndexes) -> None:
        """The log was truncated: it ends in the segment at ``base_offset``, with these indexes."""
        self._closed.clear()
        self.newest, self.newest_base = indexes, base_offset

    def _remember(self, base_offset: Offset, indexes: SegmentIndexes) -> None:
        self._closed[base_offset] = indexes
        for surplus in list(self._closed)[:-_INDEXES_KEPT]:  # readers' threads add too
            self._closed.pop(surplus, None)
