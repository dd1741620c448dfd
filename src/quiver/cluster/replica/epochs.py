"""Which leader epoch wrote which part of a log: pure.

Two logs that agree on the epoch of an entry agree on everything before it, because an epoch has one
leader and a leader only appends. So a follower finds where its log leaves its leader's by comparing
where epochs end, and never by watermarks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

import msgspec

from quiver.model.ids import LeaderEpoch, Offset

NO_EPOCH = LeaderEpoch(0)
"""Of a log without entries, and of entries that a single node stored; the first leader's epoch is 1."""


class EpochStart(msgspec.Struct, frozen=True, array_like=True):
    epoch: LeaderEpoch
    offset: Offset


class EpochEnd(msgspec.Struct, frozen=True, array_like=True):
    """The entries of ``epoch`` end before ``offset``."""

    epoch: LeaderEpoch
    offset: Offset


class EpochHistory:
    """Where each epoch begins, oldest first. Invariant: epochs and offsets both grow."""

    def __init__(self, starts: Iterable[EpochStart] = ()) -> None:
        self._starts: list[EpochStart] = []
        for start in starts:
            self.begin(start.epoch, start.offset)

    @property
    def starts(self) -> tuple[EpochStart, ...]:
        return tuple(self._starts)

    @property
    def last_epoch(self) -> LeaderEpoch:
        return self._starts[-1].epoch if self._starts else NO_EPOCH

    def begin(self, epoch: LeaderEpoch, offset: Offset) -> None:
        """The next entry, at ``offset``, is the first of ``epoch``."""
        while self._starts and self._starts[-1].offset >= offset:
            assert self._starts[-1].offset == offset, "epochs begin at the end of the log"
            assert self._starts[-1].epoch <= epoch, "epochs grow"
            self._starts.pop()  # it never had an entry
        assert self.last_epoch < epoch, "epochs grow"
        self._starts.append(EpochStart(epoch, offset))

    def truncate(self, offset: Offset) -> None:
        """The log ends at ``offset`` now."""
        while self._starts and self._starts[-1].offset >= offset:
            self._starts.pop()

    def forget(self, start: Offset) -> None:
        """The log begins at ``start`` now: of what is before, only the newest epoch matters."""
        while len(self._starts) > 1 and self._starts[1].offset < start:
            del self._starts[0]

    def end_of(self, epoch: LeaderEpoch, start: Offset, end: Offset) -> EpochEnd:
        """The newest epoch that is not after ``epoch``, and where it ends, in a log from start to end."""
        place = bisect_right(self._starts, epoch, key=lambda one: one.epoch)
        following = self._starts[place].offset if place < len(self._starts) else end
        if place == 0:
            return EpochEnd(NO_EPOCH, max(start, following))
        return EpochEnd(self._starts[place - 1].epoch, following)
