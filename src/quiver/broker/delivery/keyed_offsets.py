"""The pending messages that have a key, as columns sorted by offset, and the keys they have.

Each key that some of them have gets a number, so that what belongs to it is found in arrays. Memory
follows what is pending: a message costs 24 bytes, and a key is forgotten with its last message.
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
from pyroaring import BitMap64

from quiver.broker.delivery.offset_sets import Numbers, offset_numbers

NOBODY = -1
_ROOM = 1024


class KeyTable:
    """By the number of a key: who leads its line, who is last in it, and how many have the key."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.leader: array[int] = array("q")
        self.last: array[int] = array("q")
        self._count: array[int] = array("q")
        self._keys: list[bytes] = []
        self._numbers: dict[bytes, int] = {}
        self._free: list[int] = []

    def join(self, keys: list[bytes]) -> Numbers:
        """More messages, each with one of these keys; the keys' numbers."""
        found = list(map(self._numbers.get, keys))
        if None in found:
            found = [self._number(key) for key in keys]
        numbers = np.array(found, np.int64)
        np.add.at(np.asarray(self._count), numbers, 1)
        return numbers

    def leave(self, numbers: Numbers) -> None:
        """So many messages fewer have these keys."""
        count = np.asarray(self._count)
        np.subtract.at(count, numbers, 1)
        for number in np.unique(numbers[count[numbers] == 0]).tolist():
            del self._numbers[self._keys[number]]
            self._keys[number] = b""
            self._free.append(number)
        if not self._numbers:
            self._clear()

    def _number(self, key: bytes) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self._free.pop() if self._free else self._new_number()
            self._keys[number] = key
        return number

    def _new_number(self) -> int:
        self.leader.append(NOBODY)
        self.last.append(NOBODY)
        self._count.append(0)
        self._keys.append(b"")
        return len(self._keys) - 1


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

    def add(self, offsets: list[int], keys: list[bytes]) -> None:
        """Messages that come after all others."""
        start, end = self._size, self._size + len(offsets)
        if end > len(self._offsets):
            self._compact(max(_ROOM, 2 * (len(self.members) + len(offsets))))
            start, end = self._size, self._size + len(offsets)
        self._offsets[start:end] = offsets
        self.key[start:end] = self.keys.join(keys)
        self.behind[start:end] = NOBODY
        self._size = end
        self.members.update(offsets)

    def rows(self, offsets: Numbers | int) -> Any:
        """Where members are in the columns."""
        return np.searchsorted(self._offsets[: self._size], offsets)

    def forget(self, offsets: BitMap64) -> None:
        """Members are done with."""
        if not offsets:
            return
        self.keys.leave(self.key[self.rows(offset_numbers(offsets))])
        self.members -= offsets
        if not self.members:
            self._compact(_ROOM)

    def forget_from(self, offset: int) -> None:
        """What was there from this offset on is forgotten already; others will take its place."""
        self._size = int(np.searchsorted(self._offsets[: self._size], offset))

    def _compact(self, room: int) -> None:
        kept = offset_numbers(self.members)
        rows = self.rows(kept)
        self._size = len(kept)
        self._offsets = _moved(kept, room)
        self.key = _moved(self.key[rows], room)
        self.behind = _moved(self.behind[rows], room)


def _moved(values: Numbers, room: int) -> Numbers:
    column = np.zeros(room, values.dtype)
    column[: len(values)] = values
    return column
