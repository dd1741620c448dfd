"""Which partition a key belongs to.

The hash of a key is ``crc32c(key) * 0x9E3779B1 mod 2³²``: CRC-32C is at hand in every language, and
the multiplication spreads it over the high bits, by which ranges are told apart. A partition owns a
range of hashes; partition ``i`` of ``n`` starts out with ``[i·2³²/n, (i+1)·2³²/n)``, and may give a
part of it away later (see ``layout``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from crc32c import crc32c

from quiver.model.ids import PartitionIndex

HASHES = 1 << 32
_SPREAD = 0x9E3779B1


def key_hash(key: bytes) -> int:
    return crc32c(key) * _SPREAD % HASHES


def even_ranges(partitions: int) -> list[int]:
    """The first hash of each of ``partitions`` equal ranges."""
    return [-(-place * HASHES // partitions) for place in range(partitions)]


class KeyRouter:
    """Finds the partition of a key. ``starts[i]`` is the first hash of the range of ``owners[i]``."""

    def __init__(self, starts: Sequence[int], owners: Sequence[PartitionIndex]) -> None:
        assert starts[0] == 0, "ranges cover all hashes"
        assert list(starts) == sorted(set(starts)), "ranges are in order and not empty"
        assert len(starts) == len(owners)
        self._starts = starts
        self._owners = owners

    @classmethod
    def of(cls, first_hashes: Sequence[int]) -> KeyRouter:
        """A router for partitions whose ranges begin at these hashes."""
        ordered = sorted((first, index) for index, first in enumerate(first_hashes))
        return cls([first for first, _ in ordered], [PartitionIndex(index) for _, index in ordered])

    @classmethod
    def even(cls, partitions: int) -> KeyRouter:
        return cls(even_ranges(partitions), [PartitionIndex(i) for i in range(partitions)])

    def partition(self, key: bytes) -> PartitionIndex:
        return self._owners[bisect_right(self._starts, key_hash(key)) - 1]

    def owner(self, hashed: int) -> PartitionIndex:
        """The partition in whose range a hash is."""
        return self._owners[bisect_right(self._starts, hashed) - 1]

    @property
    def ranges(self) -> dict[PartitionIndex, tuple[int, int]]:
        """By partition: the first hash of its range, and the one behind its last."""
        ends = [*self._starts[1:], HASHES]
        return dict(zip(self._owners, zip(self._starts, ends, strict=True), strict=True))
