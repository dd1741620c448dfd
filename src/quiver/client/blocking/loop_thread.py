"""An event loop in its own thread, for programs without one.

It starts on first use and ends with ``close``, or with the program. In a child made by ``fork`` the
thread does not exist and the loop's sockets belong to the parent: objects that hold such things register
with ``look_after`` and drop them there without touching them.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

import uvloop

from quiver.errors import ConnectionLost, InvalidRequest

T = TypeVar("T")
_JOIN_TIMEOUT_S = 10.0


class Holder(Protocol):
    def forget(self) -> object:
        """Let go of everything inherited; what is returned is kept from being freed."""

    def end(self) -> None:
        """The program ends: finish, within a short bound."""


class _Holders:
    """All that must act when the process forks or ends."""

    def __init__(self) -> None:
        self._alive: WeakSet[Holder] = WeakSet()
        # Freeing a loop of the parent would close what the parent still uses.
        self._abandoned: list[object] = []
        self._is_hooked = False
        self._lock = threading.Lock()

    def add(self, holder: Holder) -> None:
        with self._lock:
            if not self._is_hooked:
                self._is_hooked = True
                if hasattr(os, "register_at_fork"):
                    os.register_at_fork(after_in_child=self._forked)
                atexit.register(self._exiting)
            self._alive.add(holder)

    def _forked(self) -> None:
        self._lock = threading.Lock()
        self._abandoned += [holder.forget() for holder in list(self._alive)]

    def _exiting(self) -> None:
        for holder in list(self._alive):
            holder.end()


_holders = _Holders()


def look_after(holder: Holder) -> None:
    """Have ``holder.forget()`` called in a forked child, and ``holder.end()`` at exit."""
    _holders.add(holder)


class LoopThread:
    """One thread that runs one event loop; ``run`` from any other thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def is_running(self) -> bool:
        return self._loop is not None

    def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the loop and wait for its result."""
        if threading.current_thread() is self._thread:
            raise InvalidRequest("a callback must not block: call this from another thread")
        future = self._start(make)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise ConnectionLost("the client was closed meanwhile") from None
        except BaseException:
            # The one who waited is gone, as after Ctrl-C: so is the reason to go on.
            future.cancel()
            raise

    def call_soon(self, call: Callable[[], None]) -> None:
        """Run something on the loop soon, unless the thread has ended."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it has just been closed
                loop.call_soon_threadsafe(call)

    def close(self) -> None:
        """Stop the loop and wait for the thread; nothing runs after this."""
        with self._lock:
            self._closed = True
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
            if loop is not None:
                loop.call_soon_threadsafe(loop.stop)
        if thread is not None and thread is not threading.current_thread():
            thread.join(_JOIN_TIMEOUT_S)

    def close_after(self, make: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run a last coroutine, then stop, without waiting for either."""
        if not self.is_running:
            return
        last = self._start(make)
        with self._lock:
            self._closed = True
            loop, self._loop, self._thread = self._loop, None, None
        if loop is not None:
            last.add_done_callback(lambda _: loop.call_soon_threadsafe(loop.stop))

    def _start(self, make: Callable[[], Coroutine[Any, Any, T]]) -> concurrent.futures.Future[T]:
        # Under the lock, so that nothing is handed to a loop that has been told to stop.
        with self._lock:
            if self._closed:
                raise InvalidRequest("the client is closed")
            if self._loop is None:
                self._loop = uvloop.new_event_loop()
                self._thread = threading.Thread(
                    target=_run, args=(self._loop,), name="quiver-client", daemon=True
                )
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(make(), self._loop)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()
