"""What every layer needs of asyncio: ending tasks, sharing them, waking those who wait.

These functions and classes know nothing of Quiver but its clock. A task that they start is always
held by somebody until it ends, and an error is either raised to a caller or deliberately ignored.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Hashable,
    Iterator,
    Sequence,
)
from functools import partial
from typing import Any, Generic, TypeVar

from quiver.model.clock import Clock, Timer

AT_ONCE = 32
"""How many items ``for_each`` works on at a time, unless told otherwise."""
T = TypeVar("T")
Item = TypeVar("Item")
Started = TypeVar("Started")
Key = TypeVar("Key", bound=Hashable)


# ------------------------------------------------------------------ futures


def retrieve_exception(done: asyncio.Future[Any]) -> BaseException | None:
    """The error of a future that is done; ``None`` if it has none, or was cancelled.

    asyncio reports an error that nobody retrieves. As a done callback this says that nobody will.
    """
    return None if done.cancelled() else done.exception()


def failed_future(error: Exception) -> asyncio.Future[Any]:
    """A future that is done, with this error."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_exception(error)
    return future


def forward_outcome(target: asyncio.Future[T], result: T, source: asyncio.Future[Any]) -> None:
    """End ``target`` as ``source`` ended: with its error, cancelled, or with ``result``."""
    if target.done():
        return
    if source.cancelled():
        target.cancel()
    elif error := source.exception():
        target.set_exception(error)
    else:
        target.set_result(result)


# ------------------------------------------------------------------ tasks


async def cancel_and_wait(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancel tasks and wait until they have ended. ``None`` stands for one that was never begun.

    How they end is not looked at.
    """
    begun = [task for task in tasks if task is not None]
    for task in begun:
        task.cancel()
    if begun:
        await asyncio.wait(begun)


async def first_of(*works: Awaitable[T]) -> asyncio.Future[T]:
    """Run until the first one ends, then cancel the others and wait for them.

    Returns the one that ended first; of several that ended together, the first that was given.
    """
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_and_wait(*tasks)
    return next(task for task in tasks if task in done)


async def finish(work: Awaitable[T]) -> T:
    """Run to the end even if the caller is cancelled meanwhile; it is cancelled afterwards.

    The error of the work is then ignored.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        retrieve_exception(task)
        raise cancelled
    return task.result()


async def for_each(
    items: Sequence[Item], work: Callable[[Item], Awaitable[None]], at_once: int = AT_ONCE
) -> None:
    """``work`` on every item, begun in their order. The first error ends all that is under way."""
    waiting = iter(items)

    async def worker() -> None:
        for item in waiting:
            await work(item)

    workers = [asyncio.ensure_future(worker()) for _ in range(min(at_once, len(items)))]
    try:
        await asyncio.gather(*workers)
    except (Exception, asyncio.CancelledError):
        await cancel_and_wait(*workers)
        raise


def report_unexpected(what: str, error: Exception) -> None:
    """Report an error that no code expects to the event loop's handler, and go on.

    A node writes it to its log with the traceback. The simulator counts it as a finding.
    """
    asyncio.get_running_loop().call_exception_handler({"message": what, "exception": error})


class TaskSet:
    """Tasks that run beside whoever started them. Each leaves the set when it ends."""

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def wait(self, timeout_s: float | None = None) -> None:
        """Wait until those that run now have ended."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)

    async def wait_for_one(self) -> None:
        """Wait until one of those that run now has ended."""
        if self._tasks:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    async def cancel(self) -> None:
        """Cancel all, and wait until they have ended."""
        await cancel_and_wait(*self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return iter(list(self._tasks))


class SingleFlight(Generic[Key, T]):
    """One task for each key at a time: who asks while it runs waits for the same one."""

    __slots__ = ("_running",)

    def __init__(self) -> None:
        self._running: dict[Key, asyncio.Task[T]] = {}

    async def run(self, key: Key, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of the work. It goes on for others if the caller is cancelled."""
        task = self._running.get(key)
        if task is None or task.done():
            task = self._running[key] = asyncio.create_task(work())
            task.add_done_callback(partial(self._ended, key))
        return await asyncio.shield(task)

    def _ended(self, key: Key, task: asyncio.Task[T]) -> None:
        retrieve_exception(task)
        if self._running.get(key) is task:
            del self._running[key]

    async def wait(self, *keys: Key) -> None:
        """Wait until what runs now for these keys has ended."""
        running = [self._running[key] for key in keys if key in self._running]
        if running:
            await asyncio.wait(running)

    async def cancel(self) -> None:
        """Cancel all, and wait until they have ended."""
        await cancel_and_wait(*self._running.values())

    def __iter__(self) -> Iterator[Key]:
        """The keys for which a task runs."""
        return iter(list(self._running))


# ------------------------------------------------------------------ waiting


def call_later(clock: Clock, seconds: float, call: Callable[[], object]) -> Timer:
    """Make a call when ``seconds`` have passed on the clock.

    Quiver's clocks have timers. For any other, a task sleeps until then.
    """
    start = getattr(clock, "call_later", None)
    if start is not None:
        timer: Timer = start(seconds, call)
        return timer
    asleep = asyncio.ensure_future(clock.sleep(seconds))
    asleep.add_done_callback(lambda done: None if done.cancelled() else call())
    return asleep


class Signal:
    """Each ``wake`` ends every wait that is under way. Waits for a limited time need the clock."""

    __slots__ = ("_clock", "_loop", "_waiters")

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiters: list[asyncio.Future[None]] = []

    def wake(self) -> None:
        if not self._waiters:
            return
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def next_wake(self) -> asyncio.Future[None]:
        """Done with the next ``wake``, counted from this very moment."""
        if self._loop is None:  # asking for it each time would be a system call each time
            self._loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        return waiter

    def forget(self, waiter: asyncio.Future[None]) -> None:
        """Nobody waits for it any more."""
        if waiter.cancel() or waiter.cancelled():  # otherwise it was woken, and has left
            self._leave(waiter)

    async def wait(self, seconds: float | None = None) -> None:
        """Until the next ``wake``; for ``seconds`` at most, if given."""
        waiter, timer = self.next_wake(), None
        if seconds is not None:
            assert self._clock is not None, "who waits for a limited time gives a clock"
            timer = call_later(self._clock, seconds, partial(self._wake_one, waiter))
        try:
            await waiter
        except asyncio.CancelledError:
            self.forget(waiter)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    async def wait_or(self, other: asyncio.Future[Any]) -> None:
        """Until the next ``wake``, or until ``other`` is done. Cheaper than a timer for each wait."""
        waiter = self.next_wake()

        def wake(_: asyncio.Future[Any]) -> None:
            if not waiter.done():
                waiter.set_result(None)

        other.add_done_callback(wake)
        try:
            await waiter
        finally:
            other.remove_done_callback(wake)
            if other.done() or waiter.cancelled():
                self._leave(waiter)

    def _wake_one(self, waiter: asyncio.Future[None]) -> None:
        if not waiter.done():
            waiter.set_result(None)
        self._leave(waiter)

    def _leave(self, waiter: asyncio.Future[None]) -> None:
        with contextlib.suppress(ValueError):
            self._waiters.remove(waiter)


class Alarm:
    """Calls ``ring`` once, no later than the earliest time that it is set for.

    It may ring before anything is due: whoever is called sets it again for what comes next. So a
    deadline that moves into the future, again and again, costs no timer each time.
    """

    __slots__ = ("_clock", "_ring", "_timer", "_when")

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._timer: Timer | None = None
        self._when = 0.0

    def ring_by(self, when: float) -> None:
        """Ring at this time of the clock's ``monotonic``, unless it rings before."""
        if self._timer is not None:
            if self._when <= when:
                return
            self._timer.cancel()
        self._when = when
        self._timer = call_later(self._clock, when - self._clock.monotonic(), self._due)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _due(self) -> None:
        self._timer = None
        self._ring()


# ------------------------------------------------------------------ without a task


def run_eagerly(
    work: Coroutine[Any, Any, T], start: Callable[[Coroutine[Any, Any, T]], Started]
) -> Started | None:
    """Run a coroutine at once, as far as it comes without waiting. ``start`` takes it from there.

    Returns what ``start`` does. One that waits for nothing costs no task. Its first part runs in
    whoever calls this, so that part must not use ``asyncio.timeout`` or ask for the current task.
    """
    try:
        waits_for = work.send(None)
    except StopIteration:
        return None
    return start(_Rest(work, waits_for))


class _Rest(Coroutine[Any, Any, T]):
    """What is left of a coroutine that has begun to wait.

    A coroutine that has not begun does not see that its task is cancelled. This one has, although its
    task has not: it is cancelled like a task that waits, and does what it does then.
    """

    __slots__ = ("_has_begun", "_waits_for", "_work")

    def __init__(self, work: Coroutine[Any, Any, T], waits_for: Any) -> None:
        self._work = work
        self._waits_for = waits_for
        self._has_begun = False

    def send(self, value: Any) -> Any:
        if self._has_begun:
            return self._work.send(value)
        self._has_begun = True
        waits_for, self._waits_for = self._waits_for, None
        return waits_for

    def throw(self, *error: Any) -> Any:
        waits_for, self._waits_for = self._waits_for, None
        self._has_begun = True
        if waits_for is not None:
            waits_for.cancel()
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, T]:
        raise TypeError("a task runs it")
