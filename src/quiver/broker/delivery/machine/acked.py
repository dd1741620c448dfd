"""Recent acknowledgements, so that a repeated one gets the same answer.

A consumer whose connection broke cannot know whether its ack was stored, so it sends it again. The
lease has ended with the first ack. This set tells such a lease from one that ended in another way.
"""

from __future__ import annotations

from pyroaring import BitMap64

from quiver.broker.delivery.machine.offset_sets import offset_range

LEASES_MAX = 4096


class RecentAcks:
    """The messages acknowledged under each of the last ``LEASES_MAX`` leases that had any."""

    def __init__(self) -> None:
        self.by_lease: dict[int, BitMap64] = {}

    def add(self, lease_id: int, offsets: BitMap64) -> None:
        known = self.by_lease.pop(lease_id, None)
        self.by_lease[lease_id] = offsets if known is None else known | offsets
        if len(self.by_lease) > LEASES_MAX:
            del self.by_lease[next(iter(self.by_lease))]

    def among(self, lease_id: int, offsets: BitMap64) -> BitMap64:
        """Those of the offsets that were acknowledged under this lease."""
        known = self.by_lease.get(lease_id)
        return BitMap64() if known is None else known & offsets

    def __contains__(self, offset: int) -> bool:
        return any(offset in offsets for offsets in self.by_lease.values())

    def keep_within(self, start: int, end: int) -> None:
        """Messages outside are gone, or were never there: what was said of them says nothing."""
        within = offset_range(start, end)
        for lease_id, offsets in list(self.by_lease.items()):
            kept = offsets & within
            if kept:
                self.by_lease[lease_id] = kept
            else:
                del self.by_lease[lease_id]
