"""The dedup window: which message ids a partition has seen recently, and where. A pure machine.

A message with an id is stored once within the window, whoever sends it and however often. The broker's own
ids, of dead letters and redrives, are apart: a client cannot make one of those a repeat. The same
fold over the stored entries rebuilds the window after a restart. Time comes in with each call. The
window holds 128-bit fingerprints in 32 bytes each. If they take more than ``BYTES_MAX``, the
oldest are forgotten before their time, and counted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import msgspec
import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from quiver.broker.partition.producers.fingerprints import Fingerprints, FingerprintTable
from quiver.errors import DedupIdPending
from quiver.model.guard import DEDUP_ID_MAX
from quiver.model.ids import Microseconds, Offset
from quiver.model.schema import COLUMN_BIT, DEAD_LETTER_COLUMNS

BYTES_MAX = 256 << 20
"""Per partition: eight million ids."""
_MARKS_MAX = 512
"""How many moments of the window are kept with the offset at which each began."""
_CUT_SHARE = 16
"""One in so many marks goes when the window takes too much memory."""

_BROKERS_OWN = sum(COLUMN_BIT[name] for name in DEAD_LETTER_COLUMNS)
"""Batches with one of these columns were made by the broker: dead letters and redriven messages."""
_BROKERS_PREFIX = "broker/" * (DEDUP_ID_MAX // 7 + 1)
"""Longer than any id of a client."""

_NONE = BitMap64()
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
        self.forgotten = 0
        """How many ids were forgotten before their time, since the partition was opened."""
        self.held_from = Microseconds(-1)
        """Ids from before this moment were forgotten, in their time or before it."""
        self._table = FingerprintTable()
        self._marks: list[tuple[Microseconds, int]] = []
        """Moments in order, and the offset of the first batch of each."""

    def __len__(self) -> int:
        return self._table.count_after(self.held_from)

    @property
    def bytes(self) -> int:
        """About how much memory it takes."""
        return self._table.bytes

    @property
    def first_offset(self) -> Offset | None:
        """From where on the batches of this partition are that have an id in the window."""
        newest = bisect_right(self._marks, self.held_from, key=lambda mark: mark[0]) - 1
        firsts = (first for _, first in self._marks[max(0, newest) :] if first != INHERITED)
        first = next(firsts, None)
        return None if first is None or not len(self) else Offset(first)

    def import_handover(self, ids: Sequence[str], append_time: Microseconds) -> None:
        """These were stored, before anything here was, in the partition this one was split from."""
        if self.window_us and ids:
            self._mark(append_time, INHERITED)
            places = np.full(len(ids), INHERITED, np.int64)
            self._table.add(Fingerprints.of(ids), places, append_time)

    def expire(self, now: Microseconds) -> None:
        """Forget what is older than the window, or is too much."""
        self._forget_to(Microseconds(now - self.window_us))
        if self._table.bytes > BYTES_MAX:
            self._table.compact(self.held_from)
            self._cut()

    def _cut(self) -> None:
        """Forget the oldest before their time, and some more, so as not to do it for each id."""
        while self._table.bytes > BYTES_MAX - BYTES_MAX // _CUT_SHARE:
            live = [time for time, _ in self._marks if time > self.held_from]
            if not live:
                break
            before = len(self)
            self._forget_to(live[len(live) // _CUT_SHARE])
            self._table.compact(self.held_from)
            self.forgotten += before - len(self)

    def _forget_to(self, moment: Microseconds) -> None:
        """What was stored at that moment or before is not in the window any more."""
        if moment <= self.held_from:
            return
        self.held_from = moment
        if not self._marks or self._marks[-1][0] + self._mark_us <= moment:
            self._table = FingerprintTable()
            self._marks.clear()
            return
        newest = bisect_right(self._marks, moment, key=lambda mark: mark[0]) - 1
        if newest > 0:
            del self._marks[:newest]
            self._table.forget(moment)

    @property
    def _mark_us(self) -> int:
        return 2 * self.window_us // _MARKS_MAX

    def _mark(self, time: Microseconds, first: int) -> None:
        was_inherited = bool(self._marks) and self._marks[-1][1] == INHERITED
        if (
            not self._marks
            or time - self._marks[-1][0] > self._mark_us
            or (was_inherited and first != INHERITED)
        ):
            self._marks.append((time, first))

    def repeats(
        self,
        ids: Sequence[str | None],
        hidden: BitMap64 = _NONE,
        pending: Callable[[], BitMap64] | None = None,
    ) -> list[int]:
        """The rows of a batch whose id is known, or is that of an earlier row.

        An id at a ``hidden`` offset is not known: that message was aborted. ``DedupIdPending`` if one
        is at an offset that is ``pending``: nobody knows yet whether that message counts.
        """
        rows, named = _named(ids)
        found = self._table.find(Fingerprints.of(named), self.held_from)
        known = found.known.tolist()
        if known and (hidden or pending is not None):
            offsets = found.offsets.tolist()
            here = [place for place in known if offsets[place] != INHERITED]
            unknown = _NONE if pending is None else pending()
            if any(offsets[place] in unknown for place in here):
                raise DedupIdPending()
            gone = {place for place in here if offsets[place] in hidden}
            known = [place for place in known if place not in gone]
        if len(set(named)) == len(named):
            return [rows[place] for place in known]
        repeated, seen = set(known), set[str]()
        for place, one in enumerate(named):
            if one in seen:
                repeated.add(place)
            seen.add(one)
        return [rows[place] for place in sorted(repeated)]

    def record(
        self, ids: Sequence[str | None], base_offset: Offset, append_time: Microseconds
    ) -> None:
        """These were stored, one after the other; an id that is known was that of an aborted message."""
        if not self.window_us:
            return
        rows, named = _named(ids)
        if named:
            # A clock that was far ahead for a while has moved the window beyond the present.
            append_time = max(append_time, Microseconds(self.held_from + 1))
            self._mark(append_time, base_offset)
            places = np.array(rows, np.int64) + base_offset
            self._table.add(Fingerprints.of(named), places, append_time)

    def find(self, one: str | None) -> Seen | None:
        """Where the message with this id is."""
        return self.find_all([one])[0]

    def find_all(self, ids: Sequence[str | None]) -> list[Seen | None]:
        """Where the messages with these ids are. Many are found together, in far less time."""
        rows, named = _named(ids)
        places: list[Seen | None] = [None] * len(ids)
        if named:
            found = self._table.find(Fingerprints.of(named), self.held_from)
            known = found.known
            offsets, times = found.offsets[known].tolist(), found.times[known].tolist()
            for place, offset, time in zip(known.tolist(), offsets, times, strict=True):
                places[rows[place]] = Seen(Offset(offset), Microseconds(time))
        return places


def _named(ids: Sequence[str | None]) -> tuple[Sequence[int], Sequence[str]]:
    """The rows that have an id, and the ids."""
    if None not in ids:
        return range(len(ids)), cast(Sequence[str], ids)
    rows = [row for row, one in enumerate(ids) if one is not None]
    return rows, [one for one in ids if one is not None]


def ids_of(rows: pa.RecordBatch, columns: int) -> list[str | None]:
    """The ids of a batch as the window knows them: no client's id is one of the broker's own."""
    ids: list[str | None] = rows.column("dedup_id").to_pylist()
    if columns & _BROKERS_OWN:
        return [None if one is None else _BROKERS_PREFIX + one for one in ids]
    return ids


def live_ids(
    ids: Iterable[tuple[Microseconds, list[str]]], held_from: Microseconds
) -> list[tuple[Microseconds, list[str]]]:
    """Those of the ids of batches that are in a window."""
    return [(time, names) for time, names in ids if time > held_from and names]
