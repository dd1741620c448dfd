"""Reservations: messages that were pushed to a consumer and that no program has yet.

A reserved message is delivered to nobody else, and is no delivery yet: none is counted and no lease
runs. Reservations are not in the state log. After a restart these messages are ready, which is what
they would be anyway once their consumers were gone.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from pyroaring import BitMap64


class Reservation(msgspec.Struct, eq=False):
    consumer: str
    offsets: BitMap64


class Reservations:
    """``held`` is the union of all reservations; no offset is in two."""

    def __init__(self) -> None:
        self.held = BitMap64()
        self._by_lease: dict[int, Reservation] = {}

    def __iter__(self) -> Iterator[Reservation]:
        return iter(self._by_lease.values())

    def add(self, lease_id: int, consumer: str, offsets: BitMap64) -> None:
        assert offsets.isdisjoint(self.held), "no offset is reserved twice"
        self.held |= offsets
        self._by_lease[lease_id] = Reservation(consumer, offsets.copy())

    def of(self, lease_id: int) -> BitMap64:
        """What is reserved under this lease."""
        known = self._by_lease.get(lease_id)
        return BitMap64() if known is None else known.offsets.copy()

    def valid(self, lease_id: int, offsets: BitMap64) -> BitMap64:
        """Those of the offsets that are reserved under this lease."""
        known = self._by_lease.get(lease_id)
        return BitMap64() if known is None else known.offsets & offsets

    def of_consumer(self, consumer: str) -> dict[int, BitMap64]:
        """What is reserved for a consumer, by lease."""
        return {
            lease_id: one.offsets.copy()
            for lease_id, one in self._by_lease.items()
            if one.consumer == consumer
        }

    def discard(self, offsets: BitMap64) -> None:
        """These are not reserved any more, whoever had them."""
        if not self.held.intersect(offsets):
            return
        for lease_id in list(self._by_lease):
            self.release(lease_id, offsets)

    def release(self, lease_id: int, offsets: BitMap64) -> None:
        """These are not reserved under this lease any more."""
        known = self._by_lease.get(lease_id)
        if known is None:
            return
        self.held -= known.offsets & offsets
        known.offsets -= offsets
        if not known.offsets:
            del self._by_lease[lease_id]
