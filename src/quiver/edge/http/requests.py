"""The HTTP requests that a node has read and not answered yet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Requests:
    """A request counts from when its headers are read, so before any that were read with it are handled."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        """One for each request and each WebSocket; the server keeps it."""
        self._waiting = 0

    def has_one(self) -> bool:
        """Whether no more than one is being handled, apart from those that only wait."""
        return len(self.tasks) - self._waiting <= 1

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """For as long as this lasts, a request only waits for messages."""
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
