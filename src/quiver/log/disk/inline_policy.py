"""When a small write may run on the event loop instead of in a disk thread.

A disk thread costs two hand-overs between threads, which for a lone small write are a large part of its
time. On the event loop it costs none, but everybody waits for the disk meanwhile. So it is allowed only
while writes are alone and the disk is quick on average. After a very slow write, or once several wait
together, all go to the disk threads for a while.
"""

from __future__ import annotations

from quiver.model.clock import Clock

SMALL_BYTES = 256 << 10
"""What may be written on the event loop at a time: as much as one system call writes."""
QUICK_S = 0.001
"""A disk is quick whose writes take no longer than this on average."""
STALL_S = 0.02
"""A write that takes longer says that more of them may follow."""
_STALL_PAUSE_S = 1.0
_CROWDED_PAUSE_S = 0.05
_WEIGHT = 0.05
"""Of the newest write in the average."""


class InlinePolicy:
    """One for all logs that share an event loop. Nothing is allowed before the first quick write."""

    __slots__ = ("_average_s", "_clock", "_not_before")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._average_s = float("inf")
        self._not_before = 0.0

    def allows(self, waiting: int, size: int) -> bool:
        """Whether ``waiting`` entries, the first of ``size`` bytes, may be written here and now."""
        if waiting > 1:
            self._pause(_CROWDED_PAUSE_S)
        return (
            waiting == 1
            and size <= SMALL_BYTES
            and self._average_s <= QUICK_S
            and self._clock.monotonic() >= self._not_before
        )

    def took(self, seconds: float) -> None:
        """So long did a write take, wherever it ran."""
        known = self._average_s != float("inf")
        self._average_s = (1 - _WEIGHT) * self._average_s + _WEIGHT * seconds if known else seconds
        if seconds > STALL_S:
            self._pause(_STALL_PAUSE_S)

    def _pause(self, seconds: float) -> None:
        self._not_before = max(self._not_before, self._clock.monotonic() + seconds)
