"""Connections of a store to its database, kept for the next use.

Any number of threads may take connections. A child process leaves those that it inherited alone:
neither SQLite's locks nor a socket survive a fork.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Lock
from typing import Generic, Protocol, TypeVar

from quiver.errors import InvalidRequest

_IDLE_MAX = 8


class Closable(Protocol):
    def close(self) -> object: ...


C = TypeVar("C", bound=Closable)


class Connections(Generic[C]):
    """``connect`` opens another one."""

    def __init__(self, connect: Callable[[], C]) -> None:
        self._connect = connect
        self._lock = Lock()
        self._process = os.getpid()
        self._idle: list[C] = []
        self._inherited: list[C] = []
        self._closed = False

    def take(self) -> C:
        with self._lock:
            if self._closed:
                raise InvalidRequest("the store of handled messages is closed")
            if self._process != os.getpid():
                self._process = os.getpid()
                self._inherited += self._idle
                self._idle = []
            if self._idle:
                return self._idle.pop()
        return self._connect()

    def release(self, connection: C) -> None:
        """Keep a connection that is as good as new."""
        with self._lock:
            if not self._closed and len(self._idle) < _IDLE_MAX:
                self._idle.append(connection)
                return
        connection.close()

    def discard(self, connection: C) -> None:
        """Close a connection that failed. Those that are idle may have failed with it."""
        with self._lock:
            idle, self._idle = self._idle, []
        for one in (connection, *idle):
            one.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        if self._process == os.getpid():
            for connection in idle:
                connection.close()
