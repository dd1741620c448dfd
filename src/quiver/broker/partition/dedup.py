"""The dedup window: which message ids a partition has seen recently, and where. A pure machine.

A message with an id is stored once within the window, whoever sends it and however often. The same
fold over the stored entries rebuilds the window after a restart. Time comes in with each call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import repeat

import msgspec

from quiver.model.ids import Microseconds, Offset

IDS_MAX = 1_000_000
"""Per partition; beyond it the oldest are forgotten before their time."""


INHERITED = -1
"""The offset of a message that is in the partition from which this one was split."""


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """Where the message with an id is stored."""

    offset: Offset
    """Below zero if it is in the partition from which this one was split."""
    append_time: Microseconds


class DedupWindow:
    """``window_us``: how long an id is remembered; 0: not at all."""

    def __init__(self, window_us: int) -> None:
        self.window_us = window_us
        self._places: dict[str, tuple[int, Microseconds]] = {}
        self._batches: deque[tuple[Microseconds, int, list[str]]] = deque()

    def __len__(self) -> int:
        return len(self._places)

    @property
    def first_offset(self) -> Offset | None:
        """Where the oldest batch of this partition is that has an id in the window."""
        firsts = (first for _, first, _ in self._batches if first != INHERITED)
        first = next(firsts, None)
        return None if first is None else Offset(first)

    @property
    def ids(self) -> list[tuple[Microseconds, list[str]]]:
        """The ids of each batch, and when it was stored; oldest first."""
        return [(time, ids) for time, _, ids in self._batches]

    def import_handover(self, ids: Sequence[str], append_time: Microseconds) -> None:
        """These were stored, before anything here was, in the partition this one was split from."""
        if self.window_us and ids:
            self._places.update(dict.fromkeys(ids, (INHERITED, append_time)))
            self._batches.append((append_time, INHERITED, list(ids)))

    def expire(self, now: Microseconds) -> None:
        """Forget what is older than the window, or is too much."""
        while self._batches and (
            self._batches[0][0] <= now - self.window_us or len(self._places) > IDS_MAX
        ):
            ids = self._batches.popleft()[2]
            deque(map(self._places.pop, ids, repeat(None)), maxlen=0)

    def repeats(self, ids: Sequence[str | None]) -> list[int]:
        """The rows of a batch whose id is known, or is that of an earlier row."""
        given = set(ids)
        given.discard(None)
        with_id = len(ids) - ids.count(None)
        if self._places.keys().isdisjoint(given) and len(given) == with_id:
            return []
        seen: set[str] = set()
        found = []
        for row, one in enumerate(ids):
            if one is None:
                continue
            if one in self._places or one in seen:
                found.append(row)
            seen.add(one)
        return found

    def record(
        self, ids: Sequence[str | None], base_offset: Offset, append_time: Microseconds
    ) -> None:
        """These were stored, one after the other; no id is one that is known."""
        if not self.window_us:
            return
        named = {
            one: (base_offset + row, append_time) for row, one in enumerate(ids) if one is not None
        }
        if named:
            self._places.update(named)
            self._batches.append((append_time, base_offset, list(named)))

    def find(self, one: str | None) -> Seen | None:
        """Where the message with this id is."""
        place = None if one is None else self._places.get(one)
        return None if place is None else Seen(Offset(place[0]), place[1])
