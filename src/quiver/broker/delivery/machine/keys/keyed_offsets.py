"""The pending messages that have a key, as columns sorted by offset, and the keys they have.

Each key that some of them have gets a number, so that what belongs to it is found in arrays. Memory
follows what is pending: rows and keys that are no longer of use are dropped as soon as they are more
than those that are.
"""

from __future__ import annotations

from array import array
from itertools import repeat
from typing import Any

import numpy as np
from pyroaring import BitMap64

from quiver.broker.delivery.machine.offset_sets import (
    Numbers,
    number_array,
    offset_numbers,
    offset_set,
)

NOBODY = -1
_ROOM = 1024


class KeyTable:
    """By the number of a key: who leads its line, who is last in it, and who came late.

    Late are those that came when others that are behind them in publish order were in line already;
    they are kept as a heap.
    """

    def __init__(self) -> None:
        self.leader: array[int] = array("q")
        self.last: array[int] = array("q")
        self.late: dict[int, list[int]] = {}
        self._keys: list[bytes] = []
        self._numbers: dict[bytes, int] = {}

    def numbers(self, keys: list[bytes]) -> list[int]:
        """The numbers of keys; those that have none get one."""
        found = list(map(self._numbers.get, keys, repeat(NOBODY)))
        return [self._number(key) for key in keys] if NOBODY in found else found

    def _number(self, key: bytes) -> int:
        number = self._numbers.setdefault(key, len(self._keys))
        if number == len(self._keys):
            self._keys.append(key)
            self.leader.append(NOBODY)
            self.last.append(NOBODY)
        return number

    def __len__(self) -> int:
        return len(self._keys)

    def keep(self, numbers: Numbers) -> None:
        """Forget all keys but these, which are numbered anew in the same order."""
        self.leader = number_array("q", np.asarray(self.leader)[numbers])
        self.last = number_array("q", np.asarray(self.last)[numbers])
        kept = numbers.tolist()
        self.late = {new: self.late[old] for new, old in enumerate(kept) if old in self.late}
        self._keys = [self._keys[number] for number in kept]
        self._numbers = {key: number for number, key in enumerate(self._keys)}


class KeyedOffsets:
    """Rows are of use as long as their offset is a member; ``_size`` of them are filled."""

    def __init__(self) -> None:
        self.keys = KeyTable()
        self.members = BitMap64()
        self._size = 0
        self._offsets: Numbers = np.zeros(_ROOM, np.int64)
        self.key: Numbers = np.zeros(_ROOM, np.int64)
        """The number of the message's key."""
        self.behind: Numbers = np.zeros(_ROOM, np.int64)
        """The offset of the next in line."""

    def add(self, offsets: Numbers, keys: list[bytes]) -> None:
        """Messages that come after all others."""
        if self._size + len(offsets) > len(self._offsets):
            self._compact(max(_ROOM, 2 * (len(self.members) + len(offsets))))
        start, end = self._size, self._size + len(offsets)
        self._offsets[start:end] = offsets
        self.key[start:end] = self.keys.numbers(keys)
        self.behind[start:end] = NOBODY
        self._size = end
        self.members |= offset_set(offsets)

    def rows(self, offsets: Numbers | int) -> Any:
        """Where members are in the columns."""
        return np.searchsorted(self._offsets[: self._size], offsets)

    def forget(self, offsets: BitMap64) -> None:
        """Members are done with."""
        self.members -= offsets
        if self._size and not self.members:
            self._compact(_ROOM)

    def forget_from(self, offset: int) -> None:
        """What was there from this offset on is forgotten already; others will take its place."""
        self._size = int(self.rows(offset))

    def _compact(self, room: int) -> None:
        kept = offset_numbers(self.members)
        rows = self.rows(kept)
        self._size = len(kept)
        self._offsets = _with_room(kept, room)
        self.key = _with_room(self.key[rows], room)
        self.behind = _with_room(self.behind[rows], room)
        self._forget_keys()

    def _forget_keys(self) -> None:
        """Forget the keys that no message has any more, once they are more than the others."""
        in_use = np.zeros(len(self.keys), np.bool_)
        in_use[self.key[: self._size]] = True
        numbers = np.flatnonzero(in_use)
        if 2 * len(numbers) < len(self.keys):
            self.keys.keep(numbers)
            self.key[: self._size] = (np.cumsum(in_use) - 1)[self.key[: self._size]]


def _with_room(values: Numbers, room: int) -> Numbers:
    column = np.zeros(room, values.dtype)
    column[: len(values)] = values
    return column
