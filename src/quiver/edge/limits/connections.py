"""Bounds the connections of all listeners of a process together. No clock, no sockets.

A connection is a stranger until its caller is authenticated. Where there is no room, the stranger that
has been connected longest makes room for the next connection, so those without a token cannot keep out
those who have one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable


class ConnectionBound:
    """``enter`` with each connection, by any key, and ``leave`` at its end."""

    def __init__(self, most: int) -> None:
        assert most > 0
        self._most = most
        self._known: set[Hashable] = set()
        self._strangers: dict[Hashable, Callable[[], None]] = {}

    @property
    def most(self) -> int:
        return self._most

    @property
    def room(self) -> int:
        """How many more there may be before one has to go."""
        return self._most - len(self._known) - len(self._strangers)

    def enter(self, key: Hashable, close: Callable[[], None]) -> bool:
        """Count a new connection; ``False`` if there is no room for it. ``close`` ends it."""
        if self.room <= 0 and not self._close_oldest():
            return False
        self._strangers[key] = close
        return True

    def admit(self, key: Hashable) -> None:
        """The caller is authenticated: from now on the connection stays."""
        if self._strangers.pop(key, None) is not None:
            self._known.add(key)

    def leave(self, key: Hashable) -> None:
        self._strangers.pop(key, None)
        self._known.discard(key)

    def _close_oldest(self) -> bool:
        if not self._strangers:
            return False
        close = self._strangers.pop(next(iter(self._strangers)))
        close()
        return True
