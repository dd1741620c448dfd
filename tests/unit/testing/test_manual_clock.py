from __future__ import annotations

import asyncio

import pytest

from quiver.model.clock import Clock, SystemClock
from quiver.testing.clock import START_US, ManualClock
from tests.aio import async_test


async def _note(clock: Clock, seconds: float, name: str, notes: list[tuple[str, float]]) -> None:
    await clock.sleep(seconds)
    notes.append((name, clock.monotonic()))


@async_test
async def test_time_stands_still_until_it_is_advanced() -> None:
    clock = ManualClock()
    sleeper = asyncio.create_task(clock.sleep(1))
    await asyncio.sleep(0.01)
    assert (clock.monotonic(), clock.time_us(), sleeper.done()) == (0, START_US, False)
    await clock.advance(0.999999)
    assert not sleeper.done()
    await clock.advance(0.000001)
    assert sleeper.done()
    assert (clock.monotonic(), clock.time_us()) == (1, START_US + 1_000_000)


@async_test
async def test_sleepers_wake_in_due_order_each_at_its_time() -> None:
    clock = ManualClock()
    notes: list[tuple[str, float]] = []
    for seconds in (3, 1, 2, 1.5):
        asyncio.create_task(_note(clock, seconds, f"{seconds}", notes))  # noqa: RUF006
    await clock.advance(10)
    assert notes == [("1", 1), ("1.5", 1.5), ("2", 2), ("3", 3)]
    assert clock.monotonic() == 10


@async_test
async def test_sleepers_due_together_wake_in_the_order_they_lay_down() -> None:
    clock = ManualClock()
    notes: list[tuple[str, float]] = []
    tasks = [asyncio.create_task(_note(clock, 1, f"{n}", notes)) for n in range(10)]
    await clock.advance(1)
    await asyncio.gather(*tasks)
    assert [name for name, _ in notes] == [f"{n}" for n in range(10)]


@async_test
async def test_a_loop_of_sleeps_is_woken_at_each_within_one_advance() -> None:
    clock = ManualClock()
    times: list[float] = []

    async def tick() -> None:
        while True:
            await clock.sleep(0.1)
            times.append(clock.monotonic())

    ticking = asyncio.create_task(tick())
    await clock.advance(1)
    ticking.cancel()
    assert times == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1]


@async_test
async def test_what_a_sleeper_sets_off_happens_before_time_moves_on() -> None:
    clock = ManualClock()
    rung = asyncio.Event()
    notes: list[tuple[str, float]] = []

    async def ring() -> None:
        await clock.sleep(1)
        rung.set()

    async def answer() -> None:
        await rung.wait()
        notes.append(("heard", clock.monotonic()))
        await _note(clock, 1, "answered", notes)

    tasks = [asyncio.create_task(ring()), asyncio.create_task(answer())]
    await clock.advance(5)
    await asyncio.gather(*tasks)
    assert notes == [("heard", 1), ("answered", 2)]


@async_test
async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = ManualClock()
    sleepers = [asyncio.create_task(clock.sleep(n + 1)) for n in range(5)]
    await asyncio.sleep(0)
    assert clock.sleepers == 5
    sleepers[2].cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleepers[2]
    assert clock.sleepers == 4
    await clock.advance(5)
    assert clock.sleepers == 0


@pytest.mark.parametrize("clock", [ManualClock(), SystemClock()])
@async_test
async def test_a_sleep_of_nothing_returns(clock: Clock) -> None:
    await clock.sleep(0)
    await clock.sleep(-1)


@async_test
async def test_many_small_steps_reach_a_whole() -> None:
    clock = ManualClock()
    sleeper = asyncio.create_task(clock.sleep(1))
    for _ in range(10):
        await clock.advance(0.1)
    assert sleeper.done()


@async_test
async def test_time_does_not_go_back_and_has_one_driver() -> None:
    clock = ManualClock()
    with pytest.raises(ValueError, match="does not go back"):
        await clock.advance(-1)
    other = asyncio.create_task(clock.advance(1))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="another task"):
        await clock.advance(1)
    await other
    assert clock.monotonic() == 1


@async_test
async def test_the_system_clock_moves_by_itself() -> None:
    clock = SystemClock()
    start, start_us = clock.monotonic(), clock.time_us()
    await clock.sleep(0.01)
    assert clock.monotonic() - start >= 0.009
    assert clock.time_us() > START_US
    assert start_us > START_US
