"""Settlements that a program made and that were not sent yet, collected to be sent together.

``add`` may be called from any thread. Everything else happens in the session's event loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from pyroaring import BitMap64

from quiver.client.consumer.session.leases import Leases
from quiver.client.consumer.settlement_kind import Kind


class SettlementBuffer:
    """``wake`` is called once for all that are added until ``take``."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._added: deque[tuple[Kind, bytes, int]] = deque()
        self._added_sets: list[tuple[Kind, Leases]] = []
        self._is_awake = False

    def __len__(self) -> int:
        return len(self._added) + len(self._added_sets)

    def add(self, kind: Kind, lease: bytes, offset: int) -> None:
        self._added.append((kind, lease, offset))
        if not self._is_awake:
            self._is_awake = True
            self._wake()

    def add_all(self, kind: Kind, leases: Leases) -> None:
        """Many messages at once. Only in the session's event loop."""
        self._added_sets.append((kind, leases))
        if not self._is_awake:
            self._is_awake = True
            self._wake()

    def take(self) -> dict[Kind, Leases]:
        """Everything that was added, by what is to be done with it."""
        self._is_awake = False
        offsets: dict[tuple[Kind, bytes], list[int]] = {}
        added = self._added
        while added:
            kind, lease, offset = added.popleft()
            known = offsets.get((kind, lease))
            if known is None:
                offsets[kind, lease] = [offset]
            else:
                known.append(offset)
        found: dict[Kind, Leases] = {}
        for (kind, lease), these in offsets.items():
            found.setdefault(kind, {})[lease] = BitMap64(these)
        sets, self._added_sets = self._added_sets, []
        for kind, leases in sets:
            known_leases = found.setdefault(kind, {})
            for lease, more in leases.items():
                known_leases.setdefault(lease, BitMap64()).update(more)
        return found
