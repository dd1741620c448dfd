"""Leases: which delivery holds which offsets, and until when.

A lease is what one receive got from one partition. Its offsets leave it one by one or many at once.
When its deadline passes, the lease on the remaining offsets has lapsed. Extending some of its offsets
gives them a deadline of their own under the same id, so receipts stay valid.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import count

import msgspec
from pyroaring import BitMap64

from quiver.model.ids import Microseconds

_ENDED_MAX = 64
"""Besides as many as there are leases, so many deadlines that no longer count may be left."""


class Lease(msgspec.Struct, kw_only=True, eq=False):
    id: int
    offsets: BitMap64
    consumer: str
    granted: Microseconds
    deadline: Microseconds
    is_session: bool = False
    """Whether the consumer has a session, which keeps the lease alive."""


class LeaseTable:
    """``held`` is the union of all leases; no offset is in two."""

    def __init__(self) -> None:
        self.held = BitMap64()
        self._parts: dict[int, list[Lease]] = {}
        self._part_count = 0
        self._deadlines: list[tuple[int, int, Lease]] = []
        self._order = count()

    def __iter__(self) -> Iterator[Lease]:
        return (lease for parts in self._parts.values() for lease in parts)

    @property
    def next_deadline(self) -> Microseconds | None:
        return Microseconds(self._deadlines[0][0]) if self._deadlines else None

    def of_consumer(self, consumer: str) -> list[Lease]:
        return [lease for lease in self if lease.consumer == consumer]

    def of(self, lease_id: int) -> list[Lease]:
        """The parts of one lease, each with its deadline."""
        return list(self._parts.get(lease_id, ()))

    def holder(self, offset: int) -> Lease | None:
        return next((lease for lease in self if offset in lease.offsets), None)

    def overlapping(self, offsets: BitMap64) -> list[Lease]:
        """The leases that hold some of the offsets."""
        return [lease for lease in self if lease.offsets.intersect(offsets)]

    def grant(self, lease: Lease) -> None:
        assert lease.offsets.isdisjoint(self.held), "no offset is leased twice"
        self.held |= lease.offsets
        self._add(lease)

    def by_grant(self, lease_id: int, offsets: BitMap64) -> list[tuple[Microseconds, BitMap64]]:
        """Those of the offsets that the lease holds, by when they were delivered."""
        parts = self._parts.get(lease_id, ())
        return [(one.granted, one.offsets & offsets) for one in parts]

    def valid(self, lease_id: int, offsets: BitMap64) -> BitMap64:
        """Those of the offsets that this lease still holds."""
        found = BitMap64()
        for lease in self._parts.get(lease_id, ()):
            if lease.offsets.intersect(offsets):
                found |= lease.offsets & offsets
        return found

    def release(self, lease_id: int, offsets: BitMap64) -> None:
        """Take offsets out of the lease that holds them."""
        for lease in self._parts.get(lease_id, ()):
            lease.offsets -= offsets
        self.held -= offsets
        self._tidy(lease_id)

    def extend(self, lease_id: int, offsets: BitMap64, deadline: Microseconds) -> None:
        """Give offsets of a lease another deadline."""
        for lease in self._parts.get(lease_id, [])[:]:
            part = lease.offsets & offsets
            if not part or lease.deadline == deadline:
                continue
            lease.offsets -= part
            self._add(
                Lease(
                    id=lease_id,
                    offsets=part,
                    consumer=lease.consumer,
                    granted=lease.granted,
                    deadline=deadline,
                    is_session=lease.is_session,
                )
            )
        self._tidy(lease_id)

    def take_lapsed(self, now: Microseconds) -> list[Lease]:
        """Leases whose deadline has passed; they are still held until released."""
        lapsed = []
        while self._deadlines and self._deadlines[0][0] <= now:
            lease = heapq.heappop(self._deadlines)[2]
            if lease.offsets:
                lapsed.append(lease)
        return lapsed

    def _add(self, lease: Lease) -> None:
        self._parts.setdefault(lease.id, []).append(lease)
        self._part_count += 1
        heapq.heappush(self._deadlines, (lease.deadline, next(self._order), lease))

    def _tidy(self, lease_id: int) -> None:
        """Forget parts of the lease that hold nothing, and deadlines if too many are of such."""
        parts = self._parts.pop(lease_id, [])
        left = [lease for lease in parts if lease.offsets]
        self._part_count -= len(parts) - len(left)
        if left:
            self._parts[lease_id] = left
        if len(self._deadlines) > (2 * self._part_count + _ENDED_MAX if self._parts else 0):
            self._deadlines = [entry for entry in self._deadlines if entry[2].offsets]
            heapq.heapify(self._deadlines)
