"""When failed messages were delivered for the first time and, of pending dead letters, for the last."""

from __future__ import annotations

from pyroaring import BitMap64

from quiver.broker.delivery.machine.timed import Moments, TimedOffsets
from quiver.model.ids import Microseconds


class DeliveryTimes:
    """Only what was given back is in here, so work that succeeds at once costs nothing."""

    def __init__(self) -> None:
        self.first = TimedOffsets()
        self.last = TimedOffsets()

    def restore(self, first: Moments, last: Moments) -> None:
        self.first.add_each(first.times, first.offsets)
        self.last.add_each(last.times, last.offsets)

    def returned(self, first_time: BitMap64, granted: Microseconds) -> None:
        """These came back from their first delivery."""
        fresh = first_time - self.first.members
        if fresh:
            self.first.add(fresh, granted)

    def dead_letter_pending(
        self, offsets: BitMap64, first_time: BitMap64, granted: Microseconds
    ) -> None:
        """These failed too often; some of them at their first delivery."""
        self.returned(first_time, granted)
        self.last.add(offsets, granted)

    def forget(self, offsets: BitMap64) -> None:
        self.first.discard(offsets)
        self.last.discard(offsets)

    def first_of(self, offsets: BitMap64) -> dict[int, int]:
        return self.first.times_of(offsets)

    def last_of(self, offsets: BitMap64) -> dict[int, int]:
        return self.last.times_of(offsets)
