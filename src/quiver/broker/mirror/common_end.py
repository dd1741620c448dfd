"""The end of what two logs have in common, found by comparing few entries. Pure.

One log was a copy of the other until one of them was written to. So they are the same up to some entry, and
different from there on: a search by halves needs one comparison for each bit of the log's length. Entries
that the other log does not have any more cannot be compared. If it has none of the entries here, nothing is
known to be common.
"""

from __future__ import annotations

from enum import Enum, auto

from quiver.model.ids import Offset


class Comparison(Enum):
    SAME = auto()
    DIFFERENT = auto()
    UNKNOWN = auto()
    """The other log begins later: retention was there."""


class CommonEnd:
    """``start`` and ``end`` are those of the log here. Compare the entry that holds ``probe``, if any."""

    def __init__(self, start: Offset, end: Offset) -> None:
        self._start = start
        self._low, self._high = start, end
        self._is_known = False
        self.probe: Offset | None = Offset(end - 1) if end > start else None
        """An offset whose entry is compared next; ``None`` when the search is over."""

    @property
    def offset(self) -> Offset:
        """Where the last entry ends that both have."""
        assert self.probe is None, "the search is not over"
        return self._low if self._is_known else self._start

    def on_compared(self, begin: Offset, end: Offset, comparison: Comparison) -> None:
        """The entry from ``begin`` to ``end`` was compared."""
        assert self.probe is not None
        assert begin <= self.probe < end, "the entry that was asked for"
        if comparison is Comparison.DIFFERENT:
            self._high = begin
        else:
            self._low = end
            self._is_known = self._is_known or comparison is Comparison.SAME
        more = self._low < self._high
        self.probe = Offset((self._low + self._high) // 2) if more else None
