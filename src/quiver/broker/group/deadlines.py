"""Things that end after a fixed time unless something happens before: sessions, requests to give up.

All wait equally long and time does not run back, so the order of starting is the order of ending.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Generic, TypeVar

from quiver.model.ids import Microseconds

_Key = TypeVar("_Key")


class Deadlines(Generic[_Key]):
    def __init__(self, timeout_us: int) -> None:
        self._timeout_us = timeout_us
        self._deadlines: dict[_Key, Microseconds] = {}

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, key: _Key) -> bool:
        return key in self._deadlines

    def start(self, key: _Key, now: Microseconds) -> Microseconds:
        """Give it the whole time, counted from now; its deadline."""
        self._deadlines.pop(key, None)
        deadline = Microseconds(now + self._timeout_us)
        self._deadlines[key] = deadline
        return deadline

    def stop(self, key: _Key) -> bool:
        """Whether it was under way."""
        return self._deadlines.pop(key, None) is not None

    def due(self, now: Microseconds) -> list[_Key]:
        """Those whose deadline has passed; they stay until stopped."""
        return list(takewhile(lambda key: self._deadlines[key] <= now, self._deadlines))
