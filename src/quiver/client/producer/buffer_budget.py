"""How much may be under way: bytes within a bound, and those who wait for some to be given back.

The count is kept under a lock that is handed in, so that taking room and using it are one step.
Threads wait with ``wait``, coroutines of the sender's event loop with ``wait_async``. A refusal ends
all waiting: nothing is ever taken again.
"""

from __future__ import annotations

import threading

from quiver.aio import Signal
from quiver.errors import QuiverError


class BufferFull(Exception):
    """There is no room for a message of this size now."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


class BufferBudget:
    """``used`` is read and written only under the lock; it passes ``limit`` only from zero."""

    __slots__ = ("_changed", "_lock", "_waiters", "_woken", "limit", "refusal", "used")

    def __init__(self, limit: int, lock: threading.Lock) -> None:
        self.limit = limit
        self.used = 0
        self.refusal: QuiverError | None = None
        self._lock = lock
        self._changed = threading.Condition(lock)
        self._waiters = 0
        self._woken = Signal()

    # ------------------------------------------------------------------ under the lock

    def take(self, size: int) -> None:
        """Count these bytes, or raise ``BufferFull`` or the refusal."""
        self.check()
        if self.used and self.used + size > self.limit:
            raise BufferFull(size)
        self.used += size

    def check(self) -> None:
        if self.refusal is not None:
            raise self.refusal.with_traceback(None)

    def release(self, size: int) -> None:
        self.used -= size
        if self._waiters:
            self._changed.notify_all()

    def refuse(self, error: QuiverError) -> None:
        self.refusal = error
        self._changed.notify_all()

    def _has(self, size: int) -> bool:
        return self.refusal is not None or not self.used or self.used + size <= self.limit

    # ------------------------------------------------------------------ without it

    def wait(self, size: int, timeout_s: float) -> bool:
        """Block this thread until so much may fit; false if that takes too long."""
        with self._changed:
            self._waiters += 1
            try:
                return self._changed.wait_for(lambda: self._has(size), timeout_s)
            finally:
                self._waiters -= 1

    async def wait_async(self, size: int) -> None:
        """Wait, on the event loop, until so much may fit."""
        while not self._has(size):
            await self.change()

    async def change(self) -> None:
        """Wait, on the event loop, until something is given back or refused."""
        await self._woken.wait()

    def wake(self) -> None:
        """Something was given back or refused; on the event loop."""
        self._woken.wake()
