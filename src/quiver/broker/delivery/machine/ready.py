"""Messages that may be delivered now, by priority, with ageing so that nothing starves.

A message gains one priority for each ageing interval that has passed since it was published. The
highest effective priority goes first; of equals the one with the higher priority of its own; within
a level the order is publish order, or tenant by tenant where the subscription is to be fair.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import numpy as np
from pyroaring import BitMap64

from quiver.broker.delivery.machine.fair import FairTurns, Tenants
from quiver.broker.delivery.machine.offset_sets import discard_from_all, lowest, number_array
from quiver.broker.delivery.machine.timed import Moments
from quiver.model.delivery_columns import DEFAULT_PRIORITY
from quiver.model.ids import Microseconds

_MOMENTS_MAX = 8192
_SPLIT_MAX = 64


class PublishTimes:
    """When the message at an offset was published, by batch, and never before the one at its left.

    Bounded: when there are too many moments, every second one of the older half is forgotten, and
    its messages count as published with those before them.
    """

    def __init__(self) -> None:
        self.bases: array[int] = array("q")
        self.times: array[int] = array("q")

    def add(self, base_offset: int, time: Microseconds) -> None:
        if not self.times or time > self.times[-1]:
            self.bases.append(base_offset)
            self.times.append(time)

    def of(self, offset: int) -> int:
        place = bisect_right(self.bases, offset) - 1
        return self.times[max(place, 0)] if self.times else 0

    def split(self, offsets: BitMap64) -> Iterator[tuple[int, int]]:
        """When these messages were published, and how many at each time; of many times, some."""
        if not offsets or not self.times:
            return
        first = max(0, bisect_right(self.bases, offsets.min()) - 1)
        last = max(0, bisect_right(self.bases, offsets.max()) - 1)
        step = (last - first) // _SPLIT_MAX + 1
        begin = 0
        for place in range(first, last + 1, step):
            following = place + step
            end = self.bases[following] if following <= last else offsets.max() + 1
            count = offsets.range_cardinality(begin, end)
            if count:
                yield self.times[place], count
            begin = end

    def first_after(self, moment: int) -> int | None:
        """The first offset that was published later."""
        place = bisect_right(self.times, moment)
        return self.bases[place] if place < len(self.bases) else None

    def moments(self) -> Moments:
        return Moments(np.array(self.times, np.int64), np.array(self.bases, np.int64))

    def restore(self, moments: Moments) -> None:
        self.bases = number_array("q", moments.offsets)
        self.times = number_array("q", moments.times)

    @property
    def is_full(self) -> bool:
        return len(self.bases) >= _MOMENTS_MAX

    def make_room(self, floor: int) -> None:
        """Forget what is below the floor, or else some of what is old."""
        below = max(0, bisect_right(self.bases, floor) - 1)
        del self.bases[:below], self.times[:below]
        if len(self.bases) > _MOMENTS_MAX // 2:
            del self.bases[1 : _MOMENTS_MAX // 2 : 2], self.times[1 : _MOMENTS_MAX // 2 : 2]

    def forget_from(self, offset: int) -> None:
        place = bisect_left(self.bases, offset)
        del self.bases[place:], self.times[place:]


class ReadyQueue:
    """Offsets by priority. ``priorities`` remembers the priority of every offset not at the default."""

    def __init__(self, ageing_us: int, *, is_fair: bool = False) -> None:
        self.published = PublishTimes()
        self.priorities: dict[int, BitMap64] = {}
        self.tenants = Tenants() if is_fair else None
        self.ageing_us = ageing_us
        self._levels: dict[int, BitMap64] = {}
        self._turns = FairTurns()
        self._lines: dict[int, dict[str, BitMap64]] = {}
        """What each level has of each tenant, if that matters."""

    def __len__(self) -> int:
        return sum(len(level) for level in self._levels.values())

    def __contains__(self, offset: int) -> bool:
        return any(offset in level for level in self._levels.values())

    @property
    def offsets(self) -> BitMap64:
        return BitMap64.union(BitMap64(), *self._levels.values())

    @property
    def first(self) -> int | None:
        return min((level.min() for level in self._levels.values()), default=None)

    def among(self, offsets: BitMap64) -> BitMap64:
        """Those of the offsets that are ready."""
        return BitMap64.union(BitMap64(), *(level & offsets for level in self._levels.values()))

    def set_priority(self, offsets: BitMap64, priority: int) -> None:
        if priority != DEFAULT_PRIORITY and offsets:
            self.priorities.setdefault(priority, BitMap64()).update(offsets)

    def forget(self, offsets: BitMap64) -> None:
        """These are done with: their priority and tenant need not be known any more."""
        discard_from_all(self.priorities, offsets)
        if self.tenants is not None:
            self.tenants.forget(offsets)

    def add(self, offsets: BitMap64) -> None:
        rest = offsets
        for priority, known in self.priorities.items():
            part = known & offsets
            if part:
                self._add(priority, part)
                rest = rest - part
        if rest:
            self._add(DEFAULT_PRIORITY, rest)

    def _add(self, priority: int, offsets: BitMap64) -> None:
        self._levels.setdefault(priority, BitMap64()).update(offsets)
        if self.tenants is not None:
            lines = self._lines.setdefault(priority, {})
            for tenant, part in self.tenants.split(offsets).items():
                lines.setdefault(tenant, BitMap64()).update(part)

    def put_back(self, offsets: BitMap64, kept: BitMap64) -> None:
        """These were taken together with what is kept, and are not delivered now."""
        self.add(offsets)
        if self.tenants is not None:
            served = self.tenants.split(kept)
            self._turns.undo(one for one in self.tenants.split(offsets) if one not in served)

    def discard(self, offsets: BitMap64) -> None:
        discard_from_all(self._levels, offsets)
        for lines in self._lines.values():
            discard_from_all(lines, offsets)

    def take(self, limit: int, now: Microseconds) -> BitMap64:
        """Remove and return the next ``limit`` offsets to deliver."""
        if len(self._levels) == 1:
            (priority,) = self._levels
            return self._remove(priority, self._next(priority, limit, None))
        taken = BitMap64()
        ranks = [self._rank(priority, now) for priority in self._levels]
        heapq.heapify(ranks)
        while len(taken) < limit and ranks:
            rank = heapq.heappop(ranks)
            priority = -rank[1]
            before = self._overtaken(priority, ranks[0], now) if ranks else None
            taken |= self._remove(priority, self._next(priority, limit - len(taken), before))
            if priority in self._levels:
                heapq.heappush(ranks, self._rank(priority, now))
        return taken

    def _remove(self, priority: int, part: BitMap64) -> BitMap64:
        """Take these out of a level, which goes when it is empty."""
        self._levels[priority] -= part
        if not self._levels[priority]:
            del self._levels[priority]
        return part

    def _next(self, priority: int, limit: int, before: int | None) -> BitMap64:
        """The next offsets of a level, of those below ``before``."""
        if self.tenants is None:
            return lowest(self._levels[priority], limit, before)
        lines = self._lines[priority]
        if before is not None:
            cut = {tenant: lowest(line, len(line), before) for tenant, line in lines.items()}
            lines = {tenant: line for tenant, line in cut.items() if line}
        part = self._turns.take(lines, limit)
        discard_from_all(self._lines[priority], part)
        return part

    def _rank(self, priority: int, now: Microseconds) -> tuple[int, int]:
        """The effective priority of a level's first message, and its own; the least goes first."""
        if not self.ageing_us:
            return -priority, -priority
        waited = now - self.published.of(self._levels[priority].min())
        return -(priority + max(0, waited) // self.ageing_us), -priority

    def _overtaken(
        self, priority: int, next_rank: tuple[int, int], now: Microseconds
    ) -> int | None:
        """From which offset on the next level goes before this one: its messages are too young."""
        effective, own = -next_rank[0], -next_rank[1]
        intervals = effective - priority + (own > priority)
        if intervals <= 0:
            return None
        return self.published.first_after(now - intervals * self.ageing_us)
