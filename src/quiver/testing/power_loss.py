"""What one loss of power spares of everything that was not synced.

Real crashes are seldom uniform: often all that was written made it, or none, or all but a tail. The
draws are mixed so that each of these, and arbitrary subsets, come up within a few seeds.
"""

from __future__ import annotations

from enum import Enum, auto
from random import Random


class _Pattern(Enum):
    ALL = auto()
    NONE = auto()
    PREFIX = auto()
    ALL_BUT_ONE = auto()
    ONLY_ONE = auto()
    SCATTERED = auto()


_PATTERNS = tuple(_Pattern)
_EVERYWHERE = (_Pattern.ALL, _Pattern.NONE)


class PowerLoss:
    """The draws of one crash; the same generator state and questions give the same answers."""

    __slots__ = ("_everywhere", "_rng")

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        # With many files, independent draws would almost never keep or lose all of them together.
        self._everywhere = rng.choice(_EVERYWHERE) if rng.random() < 1 / 3 else None

    def survivors(self, count: int) -> list[bool]:
        """For each of ``count`` things, in the order they were done, whether it survives."""
        rng = self._rng
        match self._everywhere or rng.choice(_PATTERNS):
            case _Pattern.ALL:
                return [True] * count
            case _Pattern.NONE:
                return [False] * count
            case _Pattern.PREFIX:
                kept = rng.randint(0, count)
                return [index < kept for index in range(count)]
            case _Pattern.ALL_BUT_ONE:
                chosen = rng.randrange(max(count, 1))
                return [index != chosen for index in range(count)]
            case _Pattern.ONLY_ONE:
                chosen = rng.randrange(max(count, 1))
                return [index == chosen for index in range(count)]
            case _Pattern.SCATTERED:
                share = rng.random()
                return [rng.random() < share for _ in range(count)]

    def size(self, least: int, most: int) -> int:
        """A file's size, which may have been written down before the bytes it covers, or not."""
        return self._rng.choice((least, most, self._rng.randint(least, most)))
