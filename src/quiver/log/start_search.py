"""Finds where the limits of a log would let it begin.

The start may be any offset in a segment. A search reads an index and a few entries of one segment, and
none of that where a look at the segments shows that nothing goes.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from quiver.errors import CorruptLog, UnsupportedFormat
from quiver.log.disk.disk import Disk
from quiver.log.log_start import LogStart
from quiver.log.retention import Reached, RetentionLimits, first_kept
from quiver.log.segment import Segment, segment_of
from quiver.log.segment_reader import SegmentReader
from quiver.model.ids import Microseconds, Offset


class LogExtent(msgspec.Struct, frozen=True):
    """What is stored of a log: its segments in order, from where to where it can be read."""

    segments: list[Segment]
    start: LogStart
    end: Offset
    newest: Microseconds
    """When the last entry was appended."""


class StartSearch:
    """Finds where a log would begin. May run in another thread while the log is written to."""

    def __init__(self, disk: Disk, reader: SegmentReader) -> None:
        self._disk = disk
        self._reader = reader
        self._seen = (Offset(0), Microseconds(0))
        """An entry that an earlier search met, and when it was appended."""

    def find(self, log: LogExtent, limits: RetentionLimits, now: Microseconds) -> LogStart:
        """Where the log begins once everything has gone that the limits let go."""
        reached = Reached(
            age=self._first_since(log, now, limits.age_us),
            bytes=self._first_within(log, limits.bytes),
            unfinished_age=self._first_since(log, now, limits.unfinished_age_us),
            unfinished_bytes=self._first_within(log, limits.unfinished_bytes),
        )
        return self.place(log, first_kept(log.start.offset, log.end, limits, reached))

    def place(self, log: LogExtent, offset: Offset) -> LogStart:
        """A start at ``offset``, which is in the log or at its end."""
        if offset <= log.start.offset:
            return log.start
        segment = segment_of(log.segments, offset)
        if offset == log.end:
            return LogStart(offset, segment.size)
        return LogStart(offset, self._reader.position_near(segment, offset))

    def _first_since(self, log: LogExtent, now: Microseconds, age_us: int | None) -> Offset | None:
        """The first offset that is no older than ``age_us``: all messages of an entry are of one age."""
        if age_us is None:
            return None
        time = Microseconds(now - age_us)
        offset, seen = self._seen
        if offset <= log.start.offset and seen >= time:
            return log.start.offset
        for place, segment in enumerate(log.segments):
            if self._youngest(log, place) >= time:
                following = log.segments[place + 1 :]
                end = following[0].base_offset if following else log.end
                return self._first_since_in(segment, time, end)
        return log.end

    def _youngest(self, log: LogExtent, place: int) -> Microseconds:
        """No message of a segment is younger: those after it are not, as far as they can be read."""
        for following in log.segments[place + 1 :]:
            with suppress(CorruptLog, UnsupportedFormat):
                return following.first_append_time(self._disk) or log.newest
        return log.newest

    def _first_since_in(self, segment: Segment, time: Microseconds, end: Offset) -> Offset:
        try:
            first = segment.first_append_time(self._disk)
            if first is None or first >= time:
                return segment.base_offset
            position = self._reader.indexes_of(segment).times.below(time)
            for _, entry in segment.entries(self._disk, position, self._reader.window_bytes):
                if entry.append_time >= time:
                    self._seen = (entry.base_offset, entry.append_time)
                    return entry.base_offset
        except (CorruptLog, UnsupportedFormat):
            return segment.base_offset  # it goes with the segment
        return end

    def _first_within(self, log: LogExtent, size: int | None) -> Offset | None:
        """The first offset of the newest ``size`` bytes; the entry across the line is within."""
        if size is None:
            return None
        if size == 0:
            return log.end
        left, first = size, log.segments[0]
        for segment in reversed(log.segments):
            position = segment.size - left
            if segment is first and position <= log.start.position:
                break
            if position >= 0:
                return self._entry_over(segment, position, log.end)
            left = -position
        return log.start.offset

    def _entry_over(self, segment: Segment, position: int, end: Offset) -> Offset:
        """The first offset of the entry that has the byte at ``position``."""
        try:
            indexed = self._reader.indexes_of(segment).offsets.place_before(position)
            for at, entry in segment.entries(self._disk, indexed, self._reader.window_bytes):
                if at + entry.size() > position:
                    return entry.base_offset
        except (CorruptLog, UnsupportedFormat):
            return segment.base_offset  # it goes with the segment
        return end
