"""Order for each key: of a key's messages, one at a time is under way, and in publish order.

Of the messages of a key that could be delivered one leads, and the others wait in line behind it. A
message that was taken leads until it is finished, also while it rests before a retry or is on its
way to the dead letters; before that the first in publish order leads. So what is ready never waits
for another, and a slow key costs the others nothing.
"""

from __future__ import annotations

import heapq

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from quiver.broker.delivery.machine.keys.keyed_offsets import NOBODY, KeyedOffsets
from quiver.broker.delivery.machine.offset_sets import Numbers, offset_numbers, offset_set

_GHOSTS_MAX = 4096
"""Besides as many as wait, so many may be left in the lines that no longer do."""
_SKIPS_MAX = 64
"""With so many ghosts one after the other in a line, forming the lines anew is quicker."""


class KeyOrder:
    """``under_way`` are the messages that were taken; ``waiting`` those in line behind a leader."""

    def __init__(self) -> None:
        self.under_way = BitMap64()
        self.waiting = BitMap64()
        self._keyed = KeyedOffsets()
        self._keys = self._keyed.keys
        self._reserved = BitMap64()
        """Of those under way, the ones that were only reserved: they may be let go."""
        self._ghosts = BitMap64()
        """They were finished while they waited, and are skipped when their turn comes."""
        self._is_complete = True
        """Every key is known; until then, after a restore, there are no lines."""

    @property
    def taken(self) -> BitMap64:
        """What is under way for good: reserved messages may still be let go."""
        return self.under_way - self._reserved

    def restore(self, ready: BitMap64, under_way: BitMap64) -> None:
        """These could be delivered, and these were taken; all keys have to be learned again."""
        self.under_way = under_way
        self.waiting = ready - under_way
        self._is_complete = False

    def complete(self) -> BitMap64:
        """Every key was learned again, and lines form; those of the waiting that are free to go."""
        self._is_complete = True
        keyless = self.waiting - self._keyed.members
        self.waiting -= keyless
        taken = offset_numbers(self.under_way & self._keyed.members)
        np.asarray(self._keys.leader)[self._keyed.key[self._keyed.rows(taken)]] = taken
        return keyless | self._form_lines()

    def learn(self, offsets: BitMap64, keys: pa.Array | None, base_offset: int) -> None:
        """Remember the keys of messages; those without one are in nobody's way."""
        if keys is None:
            return
        rows = offset_numbers(offsets) - base_offset
        if keys.null_count:
            rows = rows[keys.is_valid().to_numpy(zero_copy_only=False)[rows]]
        names = keys.to_pylist()
        if len(rows) < len(names):
            names = [names[row] for row in rows.tolist()]
        self._keyed.add(rows + base_offset, names)

    def line_up(self, offsets: BitMap64, *, newest: bool) -> tuple[BitMap64, BitMap64]:
        """These could be delivered: those that lead, and those that led before and wait now.

        ``newest``: in publish order they come after all others.
        """
        if not offsets.intersect(self._keyed.members):
            return offsets, BitMap64()
        keyed = offset_numbers(offsets & self._keyed.members)
        keys = self._keyed.key[self._keyed.rows(keyed)]
        if newest or self._come_last(keyed, keys):
            behind, overtaken = self._append(keyed, keys), BitMap64()
        else:
            behind, overtaken = self._insert(keyed, keys)
        leading = offsets - behind
        self.waiting -= leading
        self.waiting |= behind
        self.waiting |= overtaken
        return leading, overtaken

    def hold(self, offsets: BitMap64) -> BitMap64:
        """These are under way now and lead their keys; those that led before and wait now."""
        keyed = offset_numbers(offsets & self._keyed.members)
        keys = self._keyed.key[self._keyed.rows(keyed)]
        overtaken = BitMap64()
        if not np.array_equal(np.asarray(self._keys.leader)[keys], keyed):
            overtaken = self._take_over(keyed, keys)
        self.under_way |= offsets
        self._reserved -= offsets
        return overtaken

    def reserve(self, offsets: BitMap64) -> BitMap64:
        """These are under way now, like ``hold``; those that were not before may be let go."""
        fresh = offsets - self.under_way
        overtaken = self.hold(offsets)
        self._reserved |= fresh
        return overtaken

    def let_go(self, offsets: BitMap64) -> BitMap64:
        """These were not taken after all; the messages that lead their keys now."""
        fresh = offsets & self._reserved
        self._reserved -= fresh
        self.under_way -= fresh
        keyed = fresh & self._keyed.members
        return self._let_earlier_lead(offsets, keyed) if keyed and self.waiting else offsets

    def finish(self, offsets: BitMap64) -> BitMap64:
        """These are done with; the messages that lead their keys from now on."""
        keyed = offsets & self._keyed.members
        ghosts = keyed & self.waiting if self._is_complete else BitMap64()
        gone = keyed - ghosts
        self._ghosts |= ghosts
        self.waiting -= offsets
        self.under_way -= offsets
        self._reserved -= offsets
        freed = self._call_next(offset_numbers(gone)) if gone else gone
        self._keyed.forget(gone)
        if len(self._ghosts) > (2 * len(self.waiting) + _GHOSTS_MAX if self.waiting else 0):
            self._form_lines()
        return freed

    def forget_from(self, offset: int) -> None:
        """What was there from this offset on is finished already; other messages take its place."""
        if self._is_complete:
            self._form_lines()
        self._keyed.forget_from(offset)

    # ------------------------------------------------------------------ lines

    def _come_last(self, offsets: Numbers, keys: Numbers) -> bool:
        leader, last = np.asarray(self._keys.leader)[keys], np.asarray(self._keys.last)[keys]
        return bool(((offsets > leader) & (offsets > last)).all())

    def _append(self, offsets: Numbers, keys: Numbers) -> BitMap64:
        """These come after all others of their keys; those that wait."""
        order = np.argsort(keys, kind="stable")
        offsets, keys = offsets[order], keys[order]
        begins, ends = _groups(keys)
        leader, last = np.asarray(self._keys.leader), np.asarray(self._keys.last)
        before = last[keys]
        before[1:][~begins[1:]] = offsets[:-1][~begins[1:]]
        leads, waits = before == NOBODY, before != NOBODY
        leader[keys[leads]] = offsets[leads]
        last[keys[ends]] = offsets[ends]
        self._link(before[waits], offsets[waits])
        return offset_set(offsets[waits])

    def _insert(self, offsets: Numbers, keys: Numbers) -> tuple[BitMap64, BitMap64]:
        """These may come before others of their keys; those that wait, and those that led before."""
        leader, last = self._keys.leader, self._keys.last
        waiting, overtaken = BitMap64(), BitMap64()
        for offset, key in zip(offsets.tolist(), keys.tolist(), strict=True):
            first = leader[key]
            if first == NOBODY:
                leader[key] = last[key] = offset
            elif offset < first and first not in self.under_way:
                leader[key] = offset
                overtaken.add(first)
                self._link(offset, first)
            elif offset > last[key] and offset != first:
                self._link(last[key], offset)
                last[key] = offset
                waiting.add(offset)
            elif offset != first:
                heapq.heappush(self._keys.late.setdefault(key, []), offset)
                waiting.add(offset)
        return waiting, overtaken

    def _link(self, before: Numbers | int, behind: Numbers | int) -> None:
        self._keyed.behind[self._keyed.rows(before)] = behind

    def _take_over(self, offsets: Numbers, keys: Numbers) -> BitMap64:
        """Some of these do not lead as yet; those that did and were not taken have to wait."""
        leader, last = self._keys.leader, self._keys.last
        overtaken = BitMap64()
        for offset, key in zip(offsets.tolist(), keys.tolist(), strict=True):
            if leader[key] == NOBODY:
                leader[key] = last[key] = offset
            elif leader[key] != offset and leader[key] not in self.under_way:
                overtaken.add(leader[key])
                leader[key] = offset
        self.waiting |= overtaken
        self.waiting -= offset_set(offsets)
        self._form_lines()
        return overtaken

    def _call_next(self, gone: Numbers) -> BitMap64:
        """Of those that are gone some led: the next in line of each leads now."""
        rows = self._keyed.rows(gone)
        keys = self._keyed.key[rows]
        leader, last = np.asarray(self._keys.leader), np.asarray(self._keys.last)
        led = leader[keys] == gone
        rows, keys = rows[led], keys[led]
        followers = self._followers(rows)
        if self._keys.late:
            self._let_late_ones_in(keys, followers)
        leader[keys] = followers
        last[keys[followers == NOBODY]] = NOBODY
        freed = offset_set(followers[followers != NOBODY])
        self.waiting -= freed
        return freed

    def _let_earlier_lead(self, offsets: BitMap64, keyed: BitMap64) -> BitMap64:
        """Where one that waits is before these, it leads; who leads now, of all these offsets."""
        places = offset_numbers(keyed)
        rows = self._keyed.rows(places)
        keys = self._keyed.key[rows]
        followers = self._followers(rows)
        if self._keys.late:
            self._let_late_ones_in(keys, followers)
        self._keyed.behind[rows] = followers
        waits = (followers != NOBODY) & (followers < places)
        for key, offset in zip(keys[waits].tolist(), places[waits].tolist(), strict=True):
            heapq.heappush(self._keys.late.setdefault(key, []), offset)
        np.asarray(self._keys.leader)[keys[waits]] = followers[waits]
        behind, leading = offset_set(places[waits]), offset_set(followers[waits])
        self.waiting -= leading
        self.waiting |= behind
        return (offsets - behind) | leading

    def _followers(self, rows: Numbers) -> Numbers:
        """Who is behind each of these in line, past those that no longer wait."""
        if not self.waiting:
            return np.full(len(rows), NOBODY)
        followers = self._keyed.behind[rows]
        for _ in range(_SKIPS_MAX):
            absent = offset_set(followers[followers != NOBODY]) - self.waiting
            if not absent:
                return followers
            places = np.isin(followers, offset_numbers(absent))
            followers[places] = self._keyed.behind[self._keyed.rows(followers[places])]
            self._forget_ghosts(absent)
        self._form_lines()
        return self._keyed.behind[rows]

    def _let_late_ones_in(self, keys: Numbers, followers: Numbers) -> None:
        """Where one that came late is before the next in line, it leads instead."""
        for place in np.flatnonzero(np.isin(keys, list(self._keys.late))).tolist():
            key, follower = int(keys[place]), int(followers[place])
            late = self._keys.late[key]
            absent = BitMap64()
            while late and late[0] not in self.waiting:
                absent.add(heapq.heappop(late))
            self._forget_ghosts(absent)
            if late and (follower == NOBODY or late[0] < follower):
                first = followers[place] = heapq.heappop(late)
                self._link(first, follower)
                if follower == NOBODY:
                    self._keys.last[key] = first
            if not late:
                del self._keys.late[key]

    def _forget_ghosts(self, absent: BitMap64) -> None:
        passed = absent & self._ghosts
        self._ghosts -= passed
        self._keyed.forget(passed)

    def _form_lines(self) -> BitMap64:
        """Let everyone who waits line up anew, without ghosts; those that lead where nobody did."""
        self._keyed.forget(self._ghosts)
        self._ghosts.clear()
        self._keys.late.clear()
        leader, last = np.asarray(self._keys.leader), np.asarray(self._keys.last)
        offsets = offset_numbers(self.waiting | offset_set(leader[leader != NOBODY]))
        rows = self._keyed.rows(offsets)
        keys = self._keyed.key[rows]
        order = np.lexsort((offsets, leader[keys] != offsets, keys))
        offsets, rows, keys = offsets[order], rows[order], keys[order]
        begins, ends = _groups(keys)
        self._keyed.behind[rows[ends]] = NOBODY
        self._keyed.behind[rows[~ends]] = offsets[~begins]
        leader[keys[begins]] = offsets[begins]
        last[keys[ends]] = offsets[ends]
        leading = offset_set(offsets[begins]) & self.waiting
        self.waiting -= leading
        return leading


def _groups(keys: Numbers) -> tuple[Numbers, Numbers]:
    """Of sorted keys, where those of another key begin, and where they end."""
    begins, ends = np.ones(len(keys), np.bool_), np.ones(len(keys), np.bool_)
    begins[1:] = ends[:-1] = keys[1:] != keys[:-1]
    return begins, ends
