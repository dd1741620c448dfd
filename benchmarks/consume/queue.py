"""What every queue that is measured here can do, Quiver's and its peers' alike.

A queue is a value that can be given to another process: it says where its server is, and connects
anew for each thing that is asked of it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

Handle = Callable[[bytes], bool]
"""Works on the payload of one message; whether it was the last that is wanted."""

Send = Callable[[list[bytes]], None]
"""Publishes messages, durably; it need not wait until they are stored."""

MESSAGE_BYTES = 1_000


class Stream(Protocol):
    """Messages that one process publishes and another gets, one by one."""

    def create(self) -> None: ...

    def sender(self) -> AbstractContextManager[Send]:
        """A publisher; when the block ends, everything that it sent is stored."""
        ...

    def consume(self, handle: Handle) -> None:
        """Give each message to ``handle``, then acknowledge it, until there was the last one.

        On return the client is closed, and acknowledges nothing any more.
        """
        ...


class Queue(Stream, Protocol):
    def fill(self, messages: int) -> None: ...

    def unsettled(self) -> int:
        """How many messages are not acknowledged."""
        ...
