"""A link with delay: connections pass through here, and every byte takes its time.

It runs in a thread of its own, so that tests that block do not hold it up.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

_CHUNK = 1 << 16
_PENDING_MAX = 256
_AHEAD_S = 0.01
"""How far ahead of its rate a connection reads."""
_STOP_S_MAX = 60.0


class DelayProxy:
    """Listens at ``address`` for whoever wants ``target``; ``delay_s`` may change at any time.

    ``rate`` is how many bytes a connection passes in a second each way; without one, as many as it can.
    """

    def __init__(
        self,
        host: str,
        target: tuple[str, int],
        delay_s: float = 0.0,
        rate: float = float("inf"),
    ) -> None:
        self.delay_s = delay_s
        self._rate = rate
        self._target = target
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._call(lambda: asyncio.start_server(self._accept, host, 0))
        self.address: str = "{}:{}".format(*self._server.sockets[0].getsockname()[:2])

    def drop_connections(self) -> None:
        """Break every connection that is open now, wherever in a frame it is."""
        self._call(self._break)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        self._call(self._break)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_S_MAX)
        self._loop.close()

    def _call(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(_STOP_S_MAX)

    async def _break(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _accept(self, near: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            far, far_out = await asyncio.open_connection(*self._target)
            try:
                async with asyncio.TaskGroup() as ways:
                    ways.create_task(self._carry(near, far_out))
                    ways.create_task(self._carry(far, near_out))
            finally:
                far_out.transport.abort()
        except (OSError, asyncio.CancelledError, BaseExceptionGroup):
            pass
        finally:
            near_out.transport.abort()
            self._tasks.discard(task)

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        """Chunks leave in order, each as long after it came as the delay was then."""
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_PENDING_MAX)
        loop = asyncio.get_running_loop()

        async def deliver() -> None:
            while True:
                due, chunk = await waiting.get()
                await asyncio.sleep(max(0.0, due - loop.time()))
                target.write(chunk)
                await target.drain()

        delivering = asyncio.create_task(deliver())
        try:
            free_at = 0.0
            while chunk := await source.read(_CHUNK):
                free_at = max(free_at, loop.time()) + len(chunk) / self._rate
                await waiting.put((free_at + self.delay_s, chunk))
                if free_at - loop.time() > _AHEAD_S:
                    await asyncio.sleep(free_at - loop.time() - _AHEAD_S)
            raise ConnectionResetError("the other side has closed")
        finally:
            delivering.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await delivering
