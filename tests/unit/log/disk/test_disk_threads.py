"""Calls run off the event loop, and their results come back to it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from quiver.log.disk.disk_threads import DiskThreads
from tests.aio import async_test, run


@pytest.fixture
def threads() -> Iterator[DiskThreads]:
    threads = DiskThreads(2)
    yield threads
    threads.close()


@async_test
async def test_a_call_runs_in_another_thread_and_its_result_comes_back(
    threads: DiskThreads,
) -> None:
    assert await threads(threading.get_ident) != threading.get_ident()


@async_test
async def test_what_a_call_raises_is_raised_where_it_was_asked_for(threads: DiskThreads) -> None:
    def fail() -> None:
        raise OSError(5, "broken")

    with pytest.raises(OSError, match="broken"):
        await threads(fail)
    assert await threads(lambda: 1) == 1


@async_test
async def test_as_many_calls_run_at_a_time_as_there_are_threads(threads: DiskThreads) -> None:
    both = threading.Barrier(2, timeout=60)
    arrived = await asyncio.gather(threads(both.wait), threads(both.wait))
    assert sorted(arrived) == [0, 1]


@async_test
async def test_a_call_is_run_even_if_its_caller_was_cancelled(threads: DiskThreads) -> None:
    begin, done = threading.Event(), threading.Event()
    caller = asyncio.create_task(threads(lambda: (begin.wait(60), done.set())))
    await asyncio.sleep(0)
    caller.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await caller
    begin.set()
    assert await threads(lambda: done.wait(60))


@async_test
async def test_calls_begin_in_order() -> None:
    threads = DiskThreads(1)
    seen: list[int] = []
    await asyncio.gather(*(threads(lambda n=n: seen.append(n)) for n in range(20)))
    assert seen == list(range(20))
    threads.close()


def test_a_result_for_a_loop_that_is_closed_does_no_harm(threads: DiskThreads) -> None:
    release = threading.Event()

    async def leave() -> None:
        asyncio.create_task(threads(lambda: release.wait(60)))  # noqa: RUF006
        await asyncio.sleep(0)

    run(leave())
    release.set()

    async def again() -> list[int]:
        return await asyncio.gather(threads(lambda: 1), threads(lambda: 2))

    assert run(again()) == [1, 2]


@async_test
async def test_nothing_of_a_call_is_kept_once_it_is_done(threads: DiskThreads) -> None:
    class Thing:
        pass

    thing = Thing()
    gone = weakref.ref(thing)
    await threads(lambda held=thing: None)
    await asyncio.gather(threads(lambda: None), threads(lambda: None))
    del thing
    gc.collect()
    for _ in range(1000):
        if gone() is None:
            break
        await asyncio.sleep(0.001)
    assert gone() is None, "the thread still holds on to the call"


@async_test
async def test_closed_threads_take_no_calls_and_end(threads: DiskThreads) -> None:
    thread = await threads(threading.current_thread)
    threads.close()
    threads.close()
    with pytest.raises(RuntimeError, match="closed"):
        await threads(lambda: 1)
    thread.join(60)
    assert not thread.is_alive()
