"""An event loop on virtual time, and processes that can be paused and killed within it.

Time moves only when nothing is left to do at the present moment, and then straight to the next timer.
There is no I/O and no thread, so the same program takes the same steps in every run. Every callback
belongs to the process in whose context it was scheduled: a paused process' callbacks wait until it
goes on, a dead one's are never run, as if the machine had stopped between two instructions.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from itertools import count
from typing import Any, TypeVar

Result = TypeVar("Result")

DATE_US = 1_700_000_000_000_000
"""When every simulation begins."""


class Deadlock(Exception):
    """Everyone waits for something that nobody will do."""


class Handle:
    """A callback that is to be run, in its context, unless it is cancelled before.

    Of asyncio's own it has what is asked for: seeds make millions of them.
    """

    __slots__ = ("args", "callback", "context", "is_cancelled")

    def __init__(
        self, callback: Callable[..., Any], args: tuple[Any, ...], context: Context
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def forget(self) -> None:
        """It is never run: an error that it would have been told is not one that nobody caught."""
        for told in self.args:
            if isinstance(told, asyncio.Future) and told.done() and not told.cancelled():
                told.exception()


class Timer(Handle):
    """A callback at a time."""

    __slots__ = ("_when",)

    def __init__(
        self, when: float, callback: Callable[..., Any], args: tuple[Any, ...], context: Context
    ) -> None:
        super().__init__(callback, args, context)
        self._when = when

    def when(self) -> float:
        return self._when


class Process:
    """One life of a process: what it has scheduled runs while it is alive and not paused."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False
        self.is_paused = False
        self.held: list[Handle] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.tasks_max = _TASKS_MAX
        """With more than so many, those that are done are forgotten."""
        self.context = copy_context()
        self.context.run(_owner.set, self)


_TASKS_MAX = 200
_owner: ContextVar[Process | None] = ContextVar("owner", default=None)


class VirtualLoop(asyncio.AbstractEventLoop):
    def __init__(self) -> None:
        self.errors: list[str] = []
        """What nobody caught."""
        self._now = 0.0
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._order = count()
        self._graveyard: list[asyncio.Task[Any]] = []

    # ------------------------------------------------------------------ processes

    def start(self, process: Process, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something as a part of a process."""
        return self.create_task(work, context=process.context.copy())

    def pause(self, process: Process) -> None:
        process.is_paused = True

    def resume(self, process: Process) -> None:
        process.is_paused = False
        held, process.held = process.held, []
        if not process.is_dead:
            self._ready.extend(held)

    def kill(self, process: Process) -> None:
        """Let none of its code ever run again, not even what cleans up."""
        process.is_dead = True
        for handle in process.held:
            handle.forget()
        process.held.clear()
        self._graveyard += [task for task in process.tasks if not task.done()]
        process.tasks.clear()

    # ------------------------------------------------------------------ running

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        events._set_running_loop(self)
        try:
            task = self.create_task(work)
            while not task.done():
                self._run_once()
            result: Result = task.result()
            return result
        finally:
            events._set_running_loop(None)

    def close(self) -> None:
        """Forget every task, without a word from any of them."""
        events._set_running_loop(
            self
        )  # what cleans up may want to start something: it is forgotten too
        said = list(self.errors)
        try:
            closed: set[asyncio.Task[Any]] = set()
            while waiting := asyncio.all_tasks(self) - closed:
                for task in waiting:
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    coroutine: Any = task.get_coro()
                    with suppress(RuntimeError):
                        coroutine.close()
                closed |= waiting
        finally:
            events._set_running_loop(None)
        self.errors[:] = said
        self._ready.clear()
        self._timers.clear()

    def _run_once(self) -> None:
        ready, timers = self._ready, self._timers
        if not ready:
            if not timers:
                raise Deadlock
            self._now = max(self._now, timers[0][0])
        now = self._now
        while timers and timers[0][0] <= now:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle.is_cancelled:
                continue
            context = handle.context
            owner = context.get(_owner)
            if owner is not None:
                if owner.is_dead:
                    handle.forget()
                    continue
                if owner.is_paused:
                    owner.held.append(handle)
                    continue
            context.run(handle.callback, *handle.args)

    # ------------------------------------------------------------------ what asyncio asks of a loop

    def time(self) -> float:
        return self._now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, copy_context() if context is None else context)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, copy_context() if context is None else context)
        heapq.heappush(self._timers, (self._now + delay, next(self._order), handle))
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Timer:
        handle = Timer(when, callback, args, copy_context() if context is None else context)
        heapq.heappush(self._timers, (when, next(self._order), handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Any,
        *,
        name: str | None = None,
        context: Context | None = None,
        **_: Any,
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        owner = context.get(_owner) if context is not None else _owner.get()
        if owner is not None:
            if owner.is_dead:
                self._graveyard.append(task)
            else:
                owner.tasks.append(task)
                if len(owner.tasks) > owner.tasks_max:
                    owner.tasks = [one for one in owner.tasks if not one.done()]
                    owner.tasks_max = max(_TASKS_MAX, 2 * len(owner.tasks))
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(f"{context.get('message')}: {context.get('exception')!r}")


class VirtualClock:
    """A node's clock: durations are the loop's, the date may be off by as much as it likes."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.offset_us = 0
        self.extremes_us = (0, 0)
        """The least and the most that the offset ever was."""
        self._loop = loop

    def jump(self, us: int) -> None:
        self.offset_us += us
        least, most = self.extremes_us
        self.extremes_us = min(least, self.offset_us), max(most, self.offset_us)

    def monotonic(self) -> float:
        return self._loop.time()

    def time_us(self) -> Any:
        return DATE_US + self.offset_us + round(self._loop.time() * 1e6)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(seconds, 0))

    def call_later(self, seconds: float, call: Callable[[], object]) -> Handle:
        return self._loop.call_later(max(seconds, 0), call)
