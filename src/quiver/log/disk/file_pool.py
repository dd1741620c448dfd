"""Bounds the files that are open for writing: those that were used longest ago are closed.

A node with many logs needs few of their files at a time, and a process may open only so many. A file
that is closed here is opened again when it is next written to. Only files whose bytes are all synced are
closed: the error of a later sync would reach nobody.
"""

from __future__ import annotations

from threading import Lock
from typing import Protocol


class PooledFile(Protocol):
    def close_for_now(self) -> None:
        """Let go of the descriptor; it is opened again when it is needed."""


class FilePool:
    """``files_max`` may be open and unused at a time. For any thread."""

    def __init__(self, files_max: int) -> None:
        assert files_max > 0
        self._files_max = files_max
        self._lock = Lock()
        self._idle: dict[PooledFile, None] = {}
        """Those that were used longest ago are first."""

    def __len__(self) -> int:
        return len(self._idle)

    def take(self, file: PooledFile) -> None:
        """A file is used from now on: nobody closes it."""
        with self._lock:
            self._idle.pop(file, None)

    def put_back(self, file: PooledFile) -> None:
        """Nobody uses a file now, and all of it is synced."""
        with self._lock:
            self._idle[file] = None
            if len(self._idle) > self._files_max:
                oldest = next(iter(self._idle))
                del self._idle[oldest]
                oldest.close_for_now()
