"""One budget of memory for all caches of a process.

A cache says how much it has taken. When all of them together have more than the budget, those that
grew longest ago give something back first, so memory goes to the topics that are busy. Requests that
are under way take memory from the same budget: the caches make room for them.

Invariant: after each call, what the caches hold is at most what the budget leaves to them.
"""

from __future__ import annotations

from typing import Protocol


class Cache(Protocol):
    """Something in memory that can be read again from the disk."""

    def shrink(self, size: int) -> int:
        """Let go of at least ``size`` bytes, or of all there is; how many bytes that was."""


class CacheBudget:
    """``bytes_max`` for all caches together, and ``total_max`` for them and what is reserved.

    Used from one event loop.
    """

    def __init__(self, bytes_max: int, total_max: int | None = None) -> None:
        assert bytes_max >= 0
        self.bytes_max = bytes_max
        self._total_max = bytes_max if total_max is None else total_max
        self._held: dict[Cache, int] = {}
        """The bytes of each cache that has any; those that grew longest ago are first."""
        self._total = 0
        self._reserved = 0

    @property
    def total(self) -> int:
        """Bytes in all caches."""
        return self._total

    @property
    def room(self) -> int:
        """How much the caches may hold now."""
        return max(0, min(self.bytes_max, self._total_max - self._reserved))

    def __len__(self) -> int:
        """How many caches hold something."""
        return len(self._held)

    def grow(self, cache: Cache, size: int) -> None:
        """A cache holds ``size`` bytes more."""
        self._held[cache] = self._held.pop(cache, 0) + size
        self._total += size
        self._make_room()

    def give_back(self, cache: Cache, size: int) -> None:
        """A cache has let go of ``size`` bytes by itself."""
        left = self._held[cache] - size
        assert left >= 0, "a cache gives back what it has taken"
        self._total -= size
        if left:
            self._held[cache] = left
        else:
            del self._held[cache]

    def forget(self, cache: Cache) -> None:
        """A cache is gone, with all that it held."""
        held = self._held.pop(cache, None)
        if held is not None:
            self._total -= held

    def reserve(self, size: int) -> None:
        """Something else needs ``size`` bytes of the budget; below zero: no longer."""
        self._reserved += size
        self._make_room()

    def _make_room(self) -> None:
        while self._total > self.room:
            cache = next(iter(self._held))
            wanted = min(self._held[cache], self._total - self.room)
            freed = cache.shrink(wanted)
            assert freed >= wanted, "a cache lets go of what it is asked for"
            self.give_back(cache, freed)
