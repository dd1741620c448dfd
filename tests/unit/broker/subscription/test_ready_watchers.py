"""Those who wait for something ready: as many are woken as there are messages, and none is forgotten."""

from __future__ import annotations

import asyncio

from quiver.broker.subscription import ready_watchers
from quiver.broker.subscription.ready_watchers import ReadyWatchers
from quiver.testing.clock import ManualClock
from tests.aio import async_test, turns


class Waiting:
    """Some who wait, and how often others were called for."""

    def __init__(self, count: int) -> None:
        self.clock = ManualClock()
        self.again = 0
        self.watchers = ReadyWatchers(self.clock, self._again)
        self.tasks = [
            asyncio.create_task(self.watchers.wait(20.0, f"c{number}", None))
            for number in range(count)
        ]

    def _again(self) -> None:
        self.again += 1

    @property
    def woken(self) -> list[int]:
        return [number for number, task in enumerate(self.tasks) if task.done()]

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)


@async_test
async def test_one_message_wakes_the_one_that_waited_longest() -> None:
    waiting = Waiting(50)
    await turns()
    waiting.watchers.wake(1)
    await turns()
    assert waiting.woken == [0]
    await waiting.end()


@async_test
async def test_as_many_are_woken_as_there_are_messages() -> None:
    waiting = Waiting(50)
    await turns()
    waiting.watchers.wake(3)
    await turns()
    assert waiting.woken == [0, 1, 2]
    waiting.watchers.wake(4)  # of the four messages three have somebody who comes for them
    await turns()
    assert waiting.woken == [0, 1, 2, 3]
    for _ in range(4):
        waiting.watchers.asked()
    waiting.watchers.wake(2)
    await turns()
    assert waiting.woken == [0, 1, 2, 3, 4, 5]
    await waiting.end()


@async_test
async def test_one_that_is_woken_and_leaves_passes_it_on() -> None:
    waiting = Waiting(2)
    await turns()
    waiting.watchers.wake(1)
    waiting.tasks[0].cancel()
    await turns()
    assert waiting.again == 1
    await waiting.end()


@async_test
async def test_one_that_leaves_unwoken_is_no_longer_in_line() -> None:
    waiting = Waiting(2)
    await turns()
    waiting.tasks[0].cancel()
    await turns()
    assert (waiting.again, len(waiting.watchers)) == (0, 1)
    waiting.watchers.wake(1)
    await waiting.tasks[1]


@async_test
async def test_others_are_called_for_when_one_that_was_woken_does_not_ask() -> None:
    waiting = Waiting(2)
    await turns()
    waiting.watchers.wake(1)
    await waiting.clock.advance(ready_watchers._ASKS_WITHIN_S)
    assert waiting.again == 1
    await waiting.end()


@async_test
async def test_a_wait_ends_with_its_time() -> None:
    waiting = Waiting(1)
    await turns()
    await waiting.clock.advance(20.0)
    assert waiting.woken == [0]
    assert len(waiting.watchers) == 0
