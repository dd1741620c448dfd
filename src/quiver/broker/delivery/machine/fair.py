"""Fairness between tenants: ready messages are taken tenant by tenant, so no flood delays the others.

Each tenant has its own line, in publish order. A take gives each tenant the same share; what a tenant
does not use goes to the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyroaring import BitMap64

from quiver.broker.delivery.machine.offset_sets import discard_from_all, lowest

TENANTS_MAX = 10_000
"""Beyond so many that have something pending, further ones share a line."""
OTHERS = ""
"""The line of messages without a tenant, and of those that there is no line left for."""


class Tenants:
    """Whose each pending message is; those of ``OTHERS`` are not remembered."""

    def __init__(self) -> None:
        self.pending: dict[str, BitMap64] = {}

    def learn(self, tenant: str, offsets: BitMap64) -> None:
        if tenant == OTHERS or not offsets:
            return
        if tenant not in self.pending and len(self.pending) >= TENANTS_MAX:
            return
        self.pending.setdefault(tenant, BitMap64()).update(offsets)

    def forget(self, offsets: BitMap64) -> None:
        discard_from_all(self.pending, offsets)

    def split(self, offsets: BitMap64) -> dict[str, BitMap64]:
        """The offsets by tenant."""
        rest, parts = offsets, {}
        for tenant, known in self.pending.items():
            part = known & rest
            if part:
                parts[tenant] = part
                rest = rest - part
                if not rest:
                    return parts
        return {**parts, OTHERS: rest} if rest else parts


class FairTurns:
    """Who is to have the next message, of those that have one; who has just had one comes last."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._turn = 0

    def take(self, lines: Mapping[str, BitMap64], limit: int) -> BitMap64:
        """The next ``limit`` of the messages in these lines; the lines stay as they are."""
        taken = BitMap64()
        waiting = sorted(lines, key=lambda tenant: self._last.get(tenant, -1))[:limit]
        left = {tenant: lines[tenant] for tenant in waiting}
        while left and len(taken) < limit:
            share = max(1, (limit - len(taken)) // len(left))
            for tenant, line in list(left.items()):
                part = lowest(line, min(share, limit - len(taken)))
                taken |= part
                if len(part) == len(line):
                    del left[tenant]
                else:
                    left[tenant] = line - part
                self._turn += 1
                self._last[tenant] = self._turn
                if len(taken) == limit:
                    break
        if len(self._last) > 2 * TENANTS_MAX:
            self._last = {tenant: self._last[tenant] for tenant in lines if tenant in self._last}
        return taken

    def undo(self, tenants: Iterable[str]) -> None:
        """These have not had their turn after all: they come first."""
        for tenant in tenants:
            self._last.pop(tenant, None)
