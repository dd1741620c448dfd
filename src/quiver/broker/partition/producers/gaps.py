"""The gaps of one partition: offsets that its source had no messages for when it was copied.

A pure machine over the entries of the log, as transactions are: the same fold rebuilds it after a restart
and on another leader.
"""

from __future__ import annotations

from collections.abc import Iterable

from quiver.model.batch import StoredBatch
from quiver.model.envelope import MARKER, noted_time
from quiver.model.ids import NO_PRODUCER, Microseconds, Offset

GAPS_MAX = 100
"""The newest are kept one by one; of all of them the messages are counted."""

NotedGap = tuple[Microseconds, int]
"""When a mirror found out about a gap, and how many messages it has."""


class LogGaps:
    """``ranges`` are in order: from an offset up to, but without, another."""

    def __init__(
        self,
        ranges: Iterable[tuple[Offset, Offset]] = (),
        messages: int = 0,
        noted: Iterable[NotedGap] = (),
    ) -> None:
        self.ranges = list(ranges)
        self.messages = messages
        self.noted = list(noted)
        """The newest, in order."""

    def record(self, entry: StoredBatch) -> None:
        """Note the next entry of the log, if it fills a gap.

        Nobody's marker of this cluster ends no transaction. One that was copied is a gap of the source.
        """
        if not entry.flags & MARKER or entry.producer_id != NO_PRODUCER or entry.hops:
            return
        self.messages += entry.count
        self._note(noted_time(entry), entry.count)
        if self.ranges and self.ranges[-1][1] == entry.base_offset:
            self.ranges[-1] = (self.ranges[-1][0], entry.next_offset)
        else:
            self.ranges.append((entry.base_offset, entry.next_offset))
            del self.ranges[:-GAPS_MAX]

    def _note(self, noted: Microseconds, count: int) -> None:
        if self.noted and self.noted[-1][0] == noted:
            self.noted[-1] = (noted, self.noted[-1][1] + count)
        else:
            self.noted.append((noted, count))
            del self.noted[:-GAPS_MAX]

    def since(self, time_us: int) -> list[NotedGap]:
        """Those that were found after a time."""
        return [one for one in self.noted if one[0] > time_us]
