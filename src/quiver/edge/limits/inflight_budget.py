"""Bounds the bodies of unanswered requests of all connections together.

While there is no room, nobody is read from who has such a request unanswered. A connection without one
may always send one: it waits for no other, so nothing can wait in a circle. Requests without a body, such
as a receive that waits for messages, do not count. The caches of the logs make room for requests.
"""

from __future__ import annotations

from quiver.log.cache.cache_budget import CacheBudget


class InflightBudget:
    """``take`` with each request, ``give_back`` when it is answered. Used from one event loop."""

    def __init__(self, bytes_max: int, caches: CacheBudget | None = None) -> None:
        assert bytes_max > 0
        self._bytes_max = bytes_max
        self._caches = caches
        self._taken = 0

    @property
    def taken(self) -> int:
        return self._taken

    @property
    def is_full(self) -> bool:
        return self._taken >= self._bytes_max

    def take(self, size: int) -> None:
        self._taken += size
        if size and self._caches is not None:
            self._caches.reserve(size)

    def give_back(self, size: int) -> None:
        self._taken -= size
        assert self._taken >= 0, "only what was taken is given back"
        if size and self._caches is not None:
            self._caches.reserve(-size)
