"""The simulator's event loop: time, processes that stand still, processes that die."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from quiver.testing.simulator.loop import Deadlock, Process, VirtualLoop


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    made = VirtualLoop()
    yield made
    made.close()


def test_hours_pass_in_a_moment(loop: VirtualLoop) -> None:
    loop.run(asyncio.sleep(36_000))
    assert loop.time() == 36_000


def test_sleepers_wake_in_the_order_in_which_they_are_due(loop: VirtualLoop) -> None:
    woken: list[float] = []

    async def sleeper(seconds: float) -> None:
        await asyncio.sleep(seconds)
        woken.append(seconds)

    async def all_of_them() -> None:
        await asyncio.gather(*map(sleeper, (3, 1, 2, 0.5)))

    loop.run(all_of_them())
    assert woken == [0.5, 1, 2, 3]


def test_a_timeout_is_of_virtual_time(loop: VirtualLoop) -> None:
    async def waits() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.sleep(100)

    loop.run(waits())
    assert loop.time() == 5


def counting(loop: VirtualLoop, process: Process) -> list[float]:
    """What a process writes down, once a second, and also when it is told to clean up."""
    seen: list[float] = []

    async def work() -> None:
        try:
            while True:
                await asyncio.sleep(1)
                seen.append(loop.time())
        finally:
            seen.append(-1.0)

    loop.start(process, work())
    return seen


def test_a_paused_process_does_nothing_and_then_goes_on(loop: VirtualLoop) -> None:
    process = Process("p")
    seen = counting(loop, process)

    async def story() -> None:
        await asyncio.sleep(2.5)
        loop.pause(process)
        await asyncio.sleep(10)
        loop.resume(process)
        await asyncio.sleep(2.1)

    loop.run(story())
    assert seen == [1, 2, 12.5, 13.5, 14.5]


def test_a_dead_process_does_not_even_clean_up(loop: VirtualLoop) -> None:
    process = Process("p")
    seen = counting(loop, process)

    async def story() -> None:
        await asyncio.sleep(1.5)
        loop.kill(process)
        await asyncio.sleep(10)

    loop.run(story())
    assert seen == [1]


def test_tasks_belong_to_the_process_that_made_them(loop: VirtualLoop) -> None:
    process = Process("p")
    seen: list[str] = []

    async def child() -> None:
        await asyncio.sleep(2)
        seen.append("child")

    async def parent() -> None:
        asyncio.get_running_loop().create_task(child())
        await asyncio.sleep(0)

    async def story() -> None:
        loop.start(process, parent())
        await asyncio.sleep(1)
        loop.kill(process)
        await asyncio.sleep(5)

    loop.run(story())
    assert seen == []


def test_waiting_for_what_nobody_will_do_is_noticed(loop: VirtualLoop) -> None:
    async def waits() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock):
        loop.run(waits())
