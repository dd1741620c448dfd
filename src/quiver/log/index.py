"""A sparse index: sorted keys (offsets, or append times) and the position of the entry for each.

``floor(key)`` names a position from which a scan forward will meet the key: it is a hint that is
checked against the entries themselves. On disk it carries its own checksum, which covers the name of
its file too: an index that is damaged, missing or another's is rebuilt from the segment, never
believed.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right

from crc32c import crc32c

_MAGIC = b"QVRI"
_FIELDS = struct.Struct("<4sIqI")
"""Magic, version, position up to which the segment is indexed, count."""
_DELIVERY = struct.Struct("<q")
"""From version 2 on: the fingerprint of the segment's delivery index."""
_SUM = struct.Struct("<I")
"""Of all the rest; the keys and positions follow."""


class SparseIndex:
    """Keys never decrease; positions increase. ``covered`` is how far the segment is indexed.

    ``delivery`` is the fingerprint of the segment's delivery index up to there; ``None``: not known.
    """

    __slots__ = ("covered", "delivery", "keys", "positions")

    def __init__(self) -> None:
        self.keys: array[int] = array("q")
        self.positions: array[int] = array("q")
        self.covered = 0
        self.delivery: int | None = None

    def add(self, key: int, position: int) -> None:
        assert not self.positions or (position > self.positions[-1] and key >= self.keys[-1])
        self.keys.append(key)
        self.positions.append(position)

    def floor(self, key: int) -> int:
        """Where to start looking for the entry that holds ``key`` (the last one at or below it)."""
        place = bisect_right(self.keys, key) - 1
        return self.positions[place] if place >= 0 else 0

    def below(self, key: int) -> int:
        """Where to start looking for the first entry whose key is not below ``key``."""
        place = bisect_left(self.keys, key) - 1
        return self.positions[place] if place >= 0 else 0

    def place_before(self, position: int) -> int:
        """The position of the last indexed entry that begins at or before ``position``."""
        place = bisect_right(self.positions, position) - 1
        return self.positions[place] if place >= 0 else 0

    def beyond(self, position: int) -> tuple[int, int] | None:
        """Key and position of the first place from ``position`` on; ``None`` if there is none."""
        place = bisect_left(self.positions, position)
        return (self.keys[place], self.positions[place]) if place < len(self.keys) else None

    def before(self, position: int) -> SparseIndex:
        """The same without anything at or after ``position``."""
        place = bisect_left(self.positions, position)
        kept = SparseIndex()
        kept.keys, kept.positions = self.keys[:place], self.positions[:place]
        kept.covered = min(self.covered, position)
        return kept

    def encode(self, name: str) -> bytes:
        """The content of the file ``name``."""
        body = _little_endian(self.keys) + _little_endian(self.positions)
        version = 1 if self.delivery is None else 2
        fields = _FIELDS.pack(_MAGIC, version, self.covered, len(self.keys))
        if self.delivery is not None:
            fields += _DELIVERY.pack(self.delivery)
        return fields + _SUM.pack(_checksum(name, fields, body)) + body

    @classmethod
    def decode(cls, name: str, data: bytes) -> SparseIndex | None:
        """The index in the file ``name``; ``None`` if damaged, another's or of another version."""
        if len(data) < _FIELDS.size:
            return None
        magic, version, covered, count = _FIELDS.unpack_from(data)
        size = _FIELDS.size + (_DELIVERY.size if version == 2 else 0)
        fields, checksum, body = data[:size], data[size : size + 4], data[size + 4 :]
        if _SUM.pack(_checksum(name, fields, body)) != checksum:
            return None
        if magic != _MAGIC or version not in (1, 2) or len(body) != 16 * count:
            return None
        index = cls()
        if version == 2:
            (index.delivery,) = _DELIVERY.unpack_from(fields, _FIELDS.size)
        index.keys.frombytes(body[: 8 * count])
        index.positions.frombytes(body[8 * count :])
        if sys.byteorder == "big":
            index.keys.byteswap()
            index.positions.byteswap()
        index.covered = covered
        return index


def _checksum(name: str, fields: bytes, body: bytes) -> int:
    return crc32c(body, crc32c(fields, crc32c(name.encode())))


def _little_endian(numbers: array[int]) -> bytes:
    if sys.byteorder == "big":
        numbers = array("q", numbers)
        numbers.byteswap()
    return numbers.tobytes()
