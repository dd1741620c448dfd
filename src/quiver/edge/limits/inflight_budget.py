"""Bounds the bytes of unanswered requests of all connections together.

While there is no room, nobody is read from who already has an unanswered request. A connection without
one may always send one: it cannot wait for others forever, and nothing here can wait in a circle.
The caches of the logs make room for requests.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from quiver.log.cache.cache_budget import CacheBudget


class InflightBudget:
    """``take`` with each request, ``give_back`` when it is answered. Used from one event loop."""

    def __init__(self, bytes_max: int, caches: CacheBudget | None = None) -> None:
        assert bytes_max > 0
        self._bytes_max = bytes_max
        self._caches = caches
        self._taken = 0
        self._waiting: dict[Hashable, Callable[[], object]] = {}

    @property
    def taken(self) -> int:
        return self._taken

    @property
    def is_full(self) -> bool:
        return self._taken >= self._bytes_max

    def take(self, size: int) -> None:
        self._taken += size
        if self._caches is not None:
            self._caches.reserve(size)

    def give_back(self, size: int) -> None:
        was_full = self.is_full
        self._taken -= size
        assert self._taken >= 0, "only what was taken is given back"
        if self._caches is not None:
            self._caches.reserve(-size)
        if was_full and not self.is_full:
            waiting, self._waiting = self._waiting, {}
            for wake in waiting.values():
                wake()

    def wait(self, who: Hashable, wake: Callable[[], object]) -> None:
        """Call ``wake`` once, as soon as there is room."""
        self._waiting[who] = wake

    def leave(self, who: Hashable) -> None:
        """It waits no more."""
        self._waiting.pop(who, None)
