"""Offsets that become due at a time: delayed messages, retries, expiries.

They cost about sixteen bytes each. They are kept as runs sorted by time, with only the head of each
run in a heap. A discarded offset stays in its run until it reaches the head or the runs are merged.
Both the number of runs and the number of stale entries are bounded.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_right
from itertools import count

import numpy as np
from pyroaring import BitMap64

from quiver.broker.delivery.machine.offset_sets import (
    Numbers,
    number_array,
    offset_numbers,
    offset_set,
)
from quiver.model.ids import Microseconds

_NONE = np.array([], np.int64)
_RUNS_MAX = 256
_LARGE_RUNS = 32
"""When there are too many runs, these many large ones are left alone, and the others become one."""
_DISCARDED_MAX = 4096
"""Besides as many as there are members, so many discarded offsets may be left to forget."""


class Moments:
    """Offsets, each with a time: two equally long arrays, in any order."""

    def __init__(self, times: Numbers, offsets: Numbers) -> None:
        assert len(times) == len(offsets)
        self.times = times
        self.offsets = offsets

    @classmethod
    def none(cls) -> Moments:
        return cls(_NONE, _NONE)

    def without(self, offsets: BitMap64) -> Moments:
        if not len(self.offsets) or not offsets:
            return self
        kept = ~np.isin(self.offsets, offset_numbers(offsets))
        return Moments(self.times[kept], self.offsets[kept])


class TimedOffsets:
    """An offset is in here once, with one due time; ``members`` are those still waiting."""

    def __init__(self) -> None:
        self.members = BitMap64()
        self._runs: list[tuple[int, int, _Run]] = []
        self._order = count()
        self._entries = 0
        self._discarded = BitMap64()
        """Offsets of which an entry that no longer counts may be in a run."""
        self._readded: dict[int, int] = {}
        """When those of them are due that are members again."""

    def __len__(self) -> int:
        return len(self.members)

    @property
    def next_due(self) -> Microseconds | None:
        """When something is due next; something that was discarded meanwhile counts too."""
        return Microseconds(self._runs[0][0]) if self._runs else None

    def add(self, offsets: BitMap64, due: Microseconds) -> None:
        """All of these wait for the same moment."""
        self._add(np.full(len(offsets), due, np.int64), offset_numbers(offsets))

    def add_each(self, dues: Numbers, offsets: Numbers) -> None:
        """Each of these waits for its own moment: two equally long arrays, in any order."""
        order = np.argsort(dues, kind="stable")
        self._add(dues[order], offsets[order])

    def discard(self, offsets: BitMap64) -> None:
        if not self.members.intersect(offsets):
            return
        gone = self.members & offsets
        self.members -= gone
        for offset in gone & self._discarded:
            del self._readded[offset]
        self._discarded |= gone
        self._tidy()

    def take_due(self, now: Microseconds) -> BitMap64:
        """Remove and return what is due."""
        due = BitMap64()
        if not self._runs or self._runs[0][0] > now:
            return due
        while self._runs and self._runs[0][0] <= now:
            run = heapq.heappop(self._runs)[2]
            taken = run.take_until(now)
            self._entries -= len(taken)
            due.update(taken)
            if len(run):
                self._push(run)
        due &= self.members
        for offset in due & self._discarded:
            if self._readded[offset] > now:
                due.discard(offset)
            else:
                del self._readded[offset]
        self.members -= due
        self._tidy()
        return due

    def moments(self) -> Moments:
        """Everything that waits, with its due time."""
        return self._valid([run for _, _, run in self._runs], exact=True)

    def time_of(self, offset: int) -> Microseconds | None:
        """When one of the members is due. It looks through all of them."""
        if offset not in self.members:
            return None
        moments = self.moments()
        return Microseconds(int(moments.times[np.flatnonzero(moments.offsets == offset)[0]]))

    def times_of(self, offsets: BitMap64) -> dict[int, int]:
        """When each of those of the offsets that are members is due. It looks through all members."""
        if not self.members.intersect(offsets):
            return {}
        moments = self.moments()
        wanted = np.isin(moments.offsets, offset_numbers(offsets))
        return dict(
            zip(moments.offsets[wanted].tolist(), moments.times[wanted].tolist(), strict=True)
        )

    def _add(self, dues: Numbers, offsets: Numbers) -> None:
        """Both sorted by due time."""
        if not len(offsets):
            return
        run = _Run(number_array("q", dues), number_array("Q", offsets))
        added = BitMap64(run.offsets)
        if self._discarded.intersect(added):
            for due, offset in zip(run.dues, run.offsets, strict=True):
                if offset in self._discarded:
                    self._readded[offset] = due
        self.members |= added
        self._entries += len(run)
        self._push(run)
        if len(self._runs) > _RUNS_MAX:
            self._merge_small_runs()

    def _push(self, run: _Run) -> None:
        heapq.heappush(self._runs, (run.dues[run.gone], next(self._order), run))

    # ------------------------------------------------------------------ maintenance

    def _tidy(self) -> None:
        """Forget what was discarded, once it is more than what waits."""
        most = 2 * len(self.members) + _DISCARDED_MAX if self.members else 0
        if self._entries > most or len(self._discarded) > most:
            merged = self._merged([run for _, _, run in self._runs], exact=True)
            self._replace([], merged)
            self._entries = len(merged)
            self._discarded.clear()
            self._readded.clear()

    def _merge_small_runs(self) -> None:
        by_size = sorted((run for _, _, run in self._runs), key=len)
        small, large = by_size[:-_LARGE_RUNS], by_size[-_LARGE_RUNS:]
        merged = self._merged(small, exact=False)
        self._entries -= sum(map(len, small)) - len(merged)
        self._replace(large, merged)

    def _replace(self, kept: list[_Run], merged: _Run) -> None:
        self._runs = []
        for run in (*kept, merged):
            if len(run):
                self._push(run)

    def _merged(self, runs: list[_Run], *, exact: bool) -> _Run:
        """The runs as one, without what is not valid."""
        valid = self._valid(runs, exact=exact)
        order = np.argsort(valid.times, kind="stable")
        dues, offsets = valid.times[order], valid.offsets[order]
        return _Run(number_array("q", dues), number_array("Q", offsets))

    def _valid(self, runs: list[_Run], *, exact: bool) -> Moments:
        """What the runs have of members; ``exact``: all runs, and every member once."""
        dues = np.concatenate([_NONE, *(run.dues[run.gone :] for run in runs)])
        offsets = np.concatenate([_NONE, *(_signed(run.offsets[run.gone :]) for run in runs)])
        live = self.members if exact else offset_set(offsets) & self.members
        if len(live) == len(offsets):
            return Moments(dues, offsets)
        valid = np.isin(offsets, offset_numbers(live))
        if not exact:
            return Moments(dues[valid], offsets[valid])
        readded = np.array([*self._readded.items()], np.int64).reshape(-1, 2)
        valid &= ~np.isin(offsets, readded[:, 0])
        return Moments(
            np.concatenate([dues[valid], readded[:, 1]]),
            np.concatenate([offsets[valid], readded[:, 0]]),
        )


class _Run:
    """Offsets in the order of their due times, and how many are gone."""

    __slots__ = ("dues", "gone", "offsets")

    def __init__(self, dues: array[int], offsets: array[int]) -> None:
        assert len(dues) == len(offsets)
        self.dues = dues
        self.offsets = offsets
        self.gone = 0

    def __len__(self) -> int:
        return len(self.dues) - self.gone

    def take_until(self, now: Microseconds) -> array[int]:
        end = bisect_right(self.dues, now, lo=self.gone)
        taken = self.offsets[self.gone : end]
        self.gone = end
        if self.gone > len(self.dues) // 2:
            del self.dues[: self.gone], self.offsets[: self.gone]
            self.gone = 0
        return taken


def _signed(offsets: array[int]) -> Numbers:
    return np.asarray(offsets).view(np.int64)
