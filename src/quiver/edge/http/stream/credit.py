"""The credit of a streaming consumer, and the messages that it holds. A pure machine.

Invariant: no more is requested than was granted, and no more is held than ``HELD_MAX``. Time comes in
with each call.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from pyroaring import BitMap64

CREDIT_MAX = 1_000_000
HELD_MAX = 100_000


class _Held(msgspec.Struct):
    offsets: BitMap64
    deadline_us: int


class StreamCredit:
    def __init__(self) -> None:
        self.credit = 0
        self._leases: dict[bytes, _Held] = {}

    @property
    def held(self) -> int:
        return sum(len(lease.offsets) for lease in self._leases.values())

    def grant(self, messages: int) -> None:
        self.credit = min(CREDIT_MAX, self.credit + messages)

    def wanted(self, now_us: int) -> int:
        """How many messages may be sent now."""
        self._lapse(now_us)
        return max(0, min(self.credit, HELD_MAX - self.held))

    def delivered(self, lease: bytes, offsets: Iterable[int], deadline_us: int) -> None:
        known = self._leases.setdefault(lease, _Held(BitMap64(), deadline_us))
        before = len(known.offsets)
        known.offsets |= BitMap64(offsets)
        self.credit -= len(known.offsets) - before

    def settled(self, lease: bytes, offsets: BitMap64) -> None:
        known = self._leases.get(lease)
        if known is not None:
            known.offsets -= offsets
            if not known.offsets:
                del self._leases[lease]

    def extended(self, lease: bytes, deadline_us: int) -> None:
        known = self._leases.get(lease)
        if known is not None:
            known.deadline_us = max(known.deadline_us, deadline_us)

    def next_lapse_us(self) -> int | None:
        return min((lease.deadline_us for lease in self._leases.values()), default=None)

    def all(self, now_us: int) -> list[tuple[bytes, BitMap64]]:
        """Everything that is still held."""
        self._lapse(now_us)
        return [(lease, held.offsets) for lease, held in self._leases.items()]

    def _lapse(self, now_us: int) -> None:
        """Whatever was held for too long is with others, or soon will be."""
        for lease in [key for key, held in self._leases.items() if held.deadline_us <= now_us]:
            del self._leases[lease]
