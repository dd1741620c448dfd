"""How many messages a principal holds: received, not settled, lease not over. No clock: time comes in.

It counts what passed through it, not what the broker knows. A lease that another principal extended
counts until its first deadline, and so does one that ended early because its consumer left or the
subscription was purged.
"""

from __future__ import annotations

import heapq

import msgspec

_SPARE = 1000
"""Deadlines of leases that are settled already, before they are cleared out."""


class _Lease(msgspec.Struct):
    count: int
    deadline_us: int


class LeaseQuota:
    def __init__(self) -> None:
        self._leases: dict[bytes, _Lease] = {}
        self._deadlines: list[tuple[int, bytes]] = []
        self._count = 0

    def took(self, lease: bytes, count: int, deadline_us: int) -> None:
        known = self._leases.setdefault(lease, _Lease(0, deadline_us))
        known.count += count
        known.deadline_us = max(known.deadline_us, deadline_us)
        self._count += count
        heapq.heappush(self._deadlines, (deadline_us, lease))
        if len(self._deadlines) > 2 * len(self._leases) + _SPARE:
            self._deadlines = [(one.deadline_us, key) for key, one in self._leases.items()]
            heapq.heapify(self._deadlines)

    def settled(self, lease: bytes, count: int) -> None:
        known = self._leases.get(lease)
        if known is None:
            return
        settled = min(count, known.count)
        known.count -= settled
        self._count -= settled
        if not known.count:
            del self._leases[lease]

    def extended(self, lease: bytes, deadline_us: int) -> None:
        known = self._leases.get(lease)
        if known is not None and deadline_us > known.deadline_us:
            known.deadline_us = deadline_us

    def count(self, now_us: int) -> int:
        """How many are held now."""
        while self._deadlines and self._deadlines[0][0] <= now_us:
            _, lease = heapq.heappop(self._deadlines)
            known = self._leases.get(lease)
            if known is None:
                continue
            if known.deadline_us > now_us:
                heapq.heappush(self._deadlines, (known.deadline_us, lease))
            else:
                self.settled(lease, known.count)
        return self._count
