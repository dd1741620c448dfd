"""A table of 128-bit fingerprints of message ids: where each message is, and when it was stored.

Two keyed 64-bit hashes make a fingerprint, so among ten million ids two are alike with a chance of one
in 10^24. The hashes are of this process: they are never stored. A fingerprint takes 32 bytes. The newest
are in a short tail; the others are in sorted runs, which are merged as they grow.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import msgspec
import numpy as np

from quiver.model.delivery_columns import Numbers
from quiver.model.ids import Microseconds

_ROW_BYTES = 32
_TAIL_ROWS = 1024
_MERGED = 8
"""So many runs of about the same size become one."""
_RUN_ROWS_MAX = _TAIL_ROWS * _MERGED**3
"""Runs of this size are left alone: merging takes no longer than a few hundredths of a second."""
_FEW = 4
_SALT = "\x00"
_FIRST, _SECOND, _OFFSET, _TIME = range(4)


class Fingerprints(msgspec.Struct, frozen=True):
    """Two hashes of each of some ids."""

    first: Numbers
    second: Numbers

    @classmethod
    def of(cls, ids: Sequence[str]) -> Fingerprints:
        first = np.fromiter(map(hash, ids), np.int64, len(ids))
        second = np.fromiter(map(hash, map(_SALT.__add__, ids)), np.int64, len(ids))
        return cls(first, second)


class Places(msgspec.Struct, frozen=True):
    """Where the messages with some ids are; a time of -1: nowhere."""

    offsets: Numbers
    times: Numbers

    @property
    def known(self) -> Numbers:
        """The places of those ids that are known."""
        return np.flatnonzero(self.times >= 0)


class FingerprintTable:
    """Rows come in order of time. Of several with one fingerprint, the last one counts."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []
        """Oldest first."""
        self._tail = np.empty((4, _TAIL_ROWS), np.int64)
        self._tail_count = 0

    @property
    def bytes(self) -> int:
        return _ROW_BYTES * (self._tail_count + sum([len(run) for run in self._runs]))

    def count_after(self, moment: Microseconds) -> int:
        """How many were stored after that moment."""
        parts = [*(run.rows for run in self._runs), self._tail[:, : self._tail_count]]
        return sum(int(np.count_nonzero(part[_TIME] > moment)) for part in parts)

    def add(self, given: Fingerprints, offsets: Numbers, time: Microseconds) -> None:
        done = 0
        while done < len(offsets):
            if self._tail_count == _TAIL_ROWS:
                self._close_tail()
            end = min(len(offsets), done + _TAIL_ROWS - self._tail_count)
            added = self._tail[:, self._tail_count : self._tail_count + end - done]
            added[_FIRST] = given.first[done:end]
            added[_SECOND] = given.second[done:end]
            added[_OFFSET] = offsets[done:end]
            added[_TIME] = time
            self._tail_count += end - done
            done = end

    def forget(self, until: Microseconds) -> None:
        """Let go of runs in which everything was stored at that moment or earlier."""
        gone = 0
        while gone < len(self._runs) and self._runs[gone].newest <= until:
            gone += 1
        del self._runs[:gone]
        if self._tail_count and self._tail[_TIME, self._tail_count - 1] <= until:
            self._tail_count = 0

    def compact(self, until: Microseconds) -> None:
        """Let go of everything that was stored at that moment or earlier."""
        self.forget(until)
        self._runs = [run.after(until) for run in self._runs]
        tail = self._tail[:, : self._tail_count]
        kept = tail[:, tail[_TIME] > until]
        self._tail_count = kept.shape[1]
        self._tail[:, : self._tail_count] = kept

    def find(self, given: Fingerprints, after: Microseconds) -> Places:
        """Where those are that were stored after a moment."""
        count = len(given.first)
        places = Places(np.full(count, -1, np.int64), np.full(count, -1, np.int64))
        if count <= _FEW:
            self._find_few(given, after, places)
            return places
        order = np.argsort(given.first) if count > 1 else np.zeros(count, np.int64)
        wanted = given.first[order]
        for run in self._runs:
            firsts = run.rows[_FIRST]
            found = np.searchsorted(firsts, wanted)
            found[found == len(firsts)] = 0
            for row in np.flatnonzero(firsts[found] == wanted).tolist():
                _take(run.rows, int(found[row]), int(order[row]), given, after, places)
        self._find_in_tail(given, wanted, order, after, places)
        return places

    def _find_few(self, given: Fingerprints, after: Microseconds, places: Places) -> None:
        """The same one by one, which is quicker than sorting."""
        tail = self._tail[:, : self._tail_count]
        for one, first in enumerate(given.first.tolist()):
            for run in self._runs:
                place = bisect_left(run.firsts, first)
                if place < len(run.firsts) and run.firsts[place] == first:
                    _take(run.rows, place, one, given, after, places)
            for place in np.flatnonzero(tail[_FIRST] == first).tolist():
                _take(tail, place, one, given, after, places)

    def _find_in_tail(
        self, given: Fingerprints, wanted: Numbers, order: Numbers, after: int, places: Places
    ) -> None:
        tail = self._tail[:, : self._tail_count]
        if not len(wanted) or not self._tail_count:
            return
        found = np.searchsorted(wanted, tail[_FIRST])
        found[found == len(wanted)] = 0
        for row in np.flatnonzero(wanted[found] == tail[_FIRST]).tolist():
            first = int(tail[_FIRST, row])
            place = int(found[row])
            while place < len(wanted) and wanted[place] == first:  # the same id may be asked twice
                one = int(order[place])
                if tail[_SECOND, row] == given.second[one] and tail[_TIME, row] > after:
                    places.offsets[one], places.times[one] = tail[_OFFSET, row], tail[_TIME, row]
                place += 1

    def _close_tail(self) -> None:
        tail, self._tail_count = self._tail, 0
        self._runs.append(_Run(tail, int(tail[_TIME, -1])))
        size = _TAIL_ROWS
        while size < _RUN_ROWS_MAX:
            size *= _MERGED
            last = self._runs[-_MERGED:]
            if len(last) < _MERGED or any(len(run) >= size for run in last):
                return
            merged = np.concatenate([run.rows for run in last], axis=1)
            self._runs[-_MERGED:] = [_Run(merged, last[-1].newest)]


class _Run:
    """Fingerprints that were stored up to ``newest``, sorted by their first hash."""

    __slots__ = ("firsts", "newest", "rows")

    def __init__(self, rows: Numbers, newest: int) -> None:
        self.rows: Numbers = rows[:, np.argsort(rows[_FIRST], kind="stable")]
        self.firsts = memoryview(self.rows[_FIRST])
        """The same as the first of the rows, for looking up a few."""
        self.newest = newest

    def __len__(self) -> int:
        return len(self.firsts)

    def after(self, moment: Microseconds) -> _Run:
        return _Run(self.rows[:, self.rows[_TIME] > moment], self.newest)


def _take(
    rows: Numbers, place: int, one: int, given: Fingerprints, after: int, places: Places
) -> None:
    """Take the row that is this fingerprint's, of those with the same first hash."""
    first, second = given.first[one], given.second[one]
    while place < rows.shape[1] and rows[_FIRST, place] == first:
        if rows[_SECOND, place] == second and rows[_TIME, place] > after:
            places.offsets[one], places.times[one] = rows[_OFFSET, place], rows[_TIME, place]
        place += 1
