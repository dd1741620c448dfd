"""Whose turn it is: counts the requests about each name."""

from __future__ import annotations

_NAMES_MAX = 10_000


class Turns:
    """A name that was not asked about for long may begin anew."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def next(self, name: str) -> int:
        """How many requests about the name came before this one."""
        count = self._counts.pop(name, 0)
        self._counts[name] = count + 1
        if len(self._counts) > _NAMES_MAX:
            del self._counts[next(iter(self._counts))]
        return count
