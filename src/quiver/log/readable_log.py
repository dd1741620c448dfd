"""What readers see of a log: its published entries, by offset and by time, from its start on.

The log changes on one thread. Reads of files may run in other threads meanwhile: segments that are
removed or cut are replaced by a new list, and a read that finds another list than it began with looks
again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import TypeVar

from quiver.errors import CorruptLog, LogClosed, OffsetOutOfRange
from quiver.log.cache.hot_tail import HotTail
from quiver.log.delivery_index import DeliverySpan
from quiver.log.disk.disk import Disk
from quiver.log.log_start import LogStart
from quiver.log.retention import RetentionLimits
from quiver.log.segment import Segment, segment_of
from quiver.log.segment_reader import SegmentReader
from quiver.log.start_search import LogExtent, StartSearch
from quiver.model.batch import StoredBatch
from quiver.model.clock import Clock
from quiver.model.ids import Microseconds, Offset

T = TypeVar("T")


class ReadableLog:
    """The part of a log that readers use. Whoever writes it extends this."""

    _tail: HotTail
    """The newest entries; whoever writes the log adds them."""

    def __init__(
        self,
        folder: str,
        disk: Disk,
        segments: list[Segment],
        reader: SegmentReader,
        clock: Clock,
        *,
        start: Offset,
        end: Offset,
        newest: Microseconds,
    ) -> None:
        """``newest`` is when the last entry was appended, which ends at ``end``."""
        self.folder = folder
        self.next_offset = end
        self._segments = segments
        self._reader = reader
        self._clock = clock
        self._published_time = newest
        self._start = self._start_at(Offset(min(start, end)))
        self._start_search = StartSearch(disk, reader)
        self._closed = False

    @property
    def start_offset(self) -> Offset:
        """The first offset that can be read."""
        return self._start.offset

    @property
    def stored_from(self) -> Offset:
        """The first offset on disk: what is before the start is excluded, and goes with its segment."""
        return self._segments[0].base_offset

    @property
    def size(self) -> int:
        """Bytes from the start on, and up to an index interval before it."""
        return sum(segment.size for segment in self._segments) - self._start.position

    # ------------------------------------------------------------------ entries

    def read(self, offset: Offset, bytes_max: int = 1 << 20) -> list[StoredBatch]:
        """Entries from the one that holds ``offset`` on, about ``bytes_max``, at least one.

        Empty at the end of the log; ``OffsetOutOfRange`` outside it. The first entry may begin
        before ``offset``.
        """
        return self.read_tail(offset, bytes_max) or self.read_disk(offset, bytes_max)

    def read_tail(
        self, offset: Offset, bytes_max: int, *, stored: bool = False
    ) -> list[StoredBatch] | None:
        """The same from memory alone; ``None`` if that needs the disk.

        ``stored``: from what is excluded too, as far as it is on disk.
        """
        self._require_within(offset, stored)
        if offset == self.next_offset:
            return []
        return self._tail.read(offset, bytes_max)

    def read_disk(
        self, offset: Offset, bytes_max: int, *, stored: bool = False
    ) -> list[StoredBatch]:
        """The same from the files alone. May run in another thread while the log is written to."""

        def read(segments: list[Segment]) -> list[StoredBatch]:
            self._require_within(offset, stored)
            if offset == self.next_offset:
                return []
            return self._reader.read(segment_of(segments, offset), offset, bytes_max)

        return self._undisturbed(read)

    def offset_at(self, time: Microseconds) -> Offset:
        """The first offset appended at or after ``time``; the next offset if there is none yet.

        May run in another thread while the log is written to.
        """
        return self._undisturbed(lambda segments: self._find_time(segments, time))

    def _find_time(self, segments: list[Segment], time: Microseconds) -> Offset:
        self._require_within(self.next_offset)
        if time > self._published_time:
            return self.next_offset
        found = self._reader.first_at(segments, time, self._published_time)
        return self.next_offset if found is None else max(found, self.start_offset)

    def size_from(self, offset: Offset) -> int:
        """Bytes from the entry that holds ``offset`` on, and up to an index interval before it.

        May run in another thread while the log is written to.
        """

        def measured(segments: list[Segment]) -> int:
            if offset >= self.next_offset:
                return 0
            first = segment_of(segments, max(offset, self.start_offset))
            later = sum(one.size for one in segments if one.base_offset > first.base_offset)
            return later + first.size - self._reader.indexes_of(first).offsets.floor(offset)

        return self._undisturbed(measured)

    # ------------------------------------------------------------------ what decides delivery

    def delivery_span(self, offset: Offset) -> DeliverySpan:
        """What decides the delivery of messages from ``offset`` on, from the files alone.

        It reaches to the end of the segment at most, and not beyond what is published. May run in
        another thread while the log is written to.
        """

        def read(segments: list[Segment]) -> DeliverySpan:
            self._require_within(offset)
            return self._reader.span(*self._rest_of_segment(segments, offset))

        return self._undisturbed(read)

    def delivery_span_in_memory(self, offset: Offset) -> DeliverySpan | None:
        """The same if it needs no disk, else ``None``."""
        self._require_within(offset)
        return self._reader.span_in_memory(*self._rest_of_segment(self._segments, offset))

    def _rest_of_segment(
        self, segments: list[Segment], offset: Offset
    ) -> tuple[Segment, Offset, Offset]:
        """The segment that holds ``offset``, and how far it can be read."""
        end = self.next_offset
        place = bisect_right(segments, offset, key=lambda one: one.base_offset)
        stop = end if place == len(segments) else min(end, segments[place].base_offset)
        return segments[place - 1], offset, stop

    # ------------------------------------------------------------------ the start

    def find_start(self, limits: RetentionLimits) -> LogStart:
        """Where the log would begin if it dropped all that the limits allow.

        May run in another thread while the log is written to.
        """
        self._require_within(self.next_offset)
        now = Microseconds(self._clock.time_us())
        return self._undisturbed(
            lambda segments: self._start_search.find(
                LogExtent(segments, self._start, self.next_offset, self._published_time),
                limits,
                now,
            )
        )

    def _begin_at(self, start: LogStart) -> list[Segment]:
        """Let readers see a start that is in a checkpoint; which segments are before it."""
        following = [segment.base_offset for segment in self._segments[1:]]
        count = bisect_right(following, start.offset)
        gone, kept = self._segments[:count], self._segments[count:]
        is_whole = kept[0].base_offset == start.offset
        self._start, self._segments = LogStart(start.offset) if is_whole else start, kept
        return gone

    def _start_at(self, offset: Offset) -> LogStart:
        """A start in the first segment, without reading entries."""
        first = self._segments[0]
        if offset <= first.base_offset:
            return LogStart(offset)
        return LogStart(offset, self._reader.position_near(first, offset))

    # ------------------------------------------------------------------ reading while it changes

    def _undisturbed(self, read: Callable[[list[Segment]], T]) -> T:
        """What ``read`` finds in segments that nobody removed or cut meanwhile."""
        while True:
            segments = self._segments
            try:
                found = read(segments)
            except CorruptLog:
                if segments is self._segments:
                    raise
            else:
                if segments is self._segments:
                    return found

    def _require_within(self, offset: Offset, stored: bool = False) -> None:
        if self._closed:
            raise LogClosed(f"{self.folder} is closed")
        first = self.stored_from if stored else self.start_offset
        if not first <= offset <= self.next_offset:
            gone = offset < first
            raise OffsetOutOfRange(
                f"offset {offset:,} is {'no longer' if gone else 'not yet'} in the log: "
                f"the first offset is {self.start_offset:,}, the next will be "
                f"{self.next_offset:,}",
                first_offset=self.start_offset,
                next_offset=self.next_offset,
            )
