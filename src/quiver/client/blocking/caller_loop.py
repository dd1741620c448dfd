"""An event loop that runs only while a caller waits, in the caller's own thread.

A call through a loop thread wakes two threads, which costs a lone call more than everything else on the
client's side. So calls that are over when they return run here: one at a time. Whoever finds the loop
taken uses the loop thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from quiver.client.async_client import AsyncClient
from quiver.errors import ConnectionLost, QuiverError

T = TypeVar("T")
_QUIET_S = 0.01
"""After so long without a call, the loop first looks whether its connections are still there."""
_CLOSE_S = 5.0
_open_loops: set[asyncio.AbstractEventLoop] = set()
"""Those that were not closed. Python must not free the parts of one in whatever order it likes."""


class CallerLoop:
    """An async client of its own, made with the first call. ``run`` only after ``acquire``."""

    def __init__(self, make: Callable[[], AsyncClient]) -> None:
        self._make = make
        self._turn = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: AsyncClient | None = None
        self._task: asyncio.Task[Any] | None = None
        self._used = 0.0
        self._is_closed = False

    @property
    def is_running(self) -> bool:
        """Whether there is something to close."""
        return self._loop is not None

    def acquire(self) -> bool:
        """Take the loop for one ``run``; whether it is free and may be run in this thread."""
        if self._is_closed or asyncio._get_running_loop() is not None:
            return False
        if not self._turn.acquire(blocking=False):
            return False
        if self._is_closed:
            self._turn.release()
            return False
        return True

    def run(self, work: Callable[[AsyncClient], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine with the client and give the loop free. The caller has acquired it."""
        try:
            loop, client = self._opened()
            now = time.monotonic()
            if now - self._used > _QUIET_S:
                loop.run_until_complete(asyncio.sleep(0))
            self._task = task = loop.create_task(work(client))
            try:
                return loop.run_until_complete(task)
            except asyncio.CancelledError:
                raise ConnectionLost("the client was closed meanwhile") from None
            except BaseException:
                # The one who waited is gone, as after Ctrl-C: so is the reason to go on.
                _cancel(loop, task)
                raise
            finally:
                self._task = None
                self._used = time.monotonic()
        finally:
            self._turn.release()

    def _opened(self) -> tuple[asyncio.AbstractEventLoop, AsyncClient]:
        if self._loop is None or self._client is None:
            self._loop, self._client = asyncio.new_event_loop(), self._make()
            _open_loops.add(self._loop)
        return self._loop, self._client

    def close(self) -> None:
        """End the call that runs in another thread, if there is one, and disconnect."""
        self._is_closed = True
        loop, task = self._loop, self._task
        if loop is None:
            return
        if task is not None:
            with contextlib.suppress(RuntimeError):  # it has just ended
                loop.call_soon_threadsafe(task.cancel)
        if asyncio._get_running_loop() is None:
            self._disconnect(loop)
        else:  # two loops cannot run in one thread
            thread = threading.Thread(target=self._disconnect, args=(loop,), daemon=True)
            thread.start()
            thread.join()

    def close_later(self) -> None:
        """Disconnect without making anybody wait: what uses the loop is being freed."""
        self._is_closed = True
        threading.Thread(target=self.close, daemon=True).start()

    def _disconnect(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._turn.acquire(timeout=_CLOSE_S):
            return
        client, self._loop, self._client = self._client, None, None
        try:
            if client is not None:
                with contextlib.suppress(QuiverError, TimeoutError):
                    loop.run_until_complete(asyncio.wait_for(client.close(), _CLOSE_S))
            loop.close()
        finally:
            _open_loops.discard(loop)
            self._turn.release()


def _cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
    # An interrupt may come between the end of the task and the stop of the loop, which is still due then.
    loop.call_soon(loop.stop)
    loop.run_forever()
    if not task.done():
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            loop.run_until_complete(task)
        loop.run_until_complete(asyncio.sleep(0))  # what the nodes are told of it is written
