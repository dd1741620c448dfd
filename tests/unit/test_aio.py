"""Ending tasks, sharing them, and waking those who wait."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from quiver.aio import (
    Alarm,
    Signal,
    SingleFlight,
    TaskSet,
    call_later,
    cancel_and_wait,
    failed_future,
    finish,
    first_of,
    for_each,
    forward_outcome,
    report_unexpected,
    retrieve_exception,
    run_eagerly,
)
from quiver.errors import Unavailable
from quiver.testing.clock import ManualClock
from tests.aio import async_test, turns


async def forever() -> None:
    await asyncio.Event().wait()


async def fail() -> None:
    raise Unavailable("not now")


def reports() -> list[dict[str, Any]]:
    """What is reported to the event loop from now on."""
    found: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: found.append(context))
    return found


class TestFutures:
    @async_test
    async def test_an_error_that_is_retrieved_is_not_reported(self) -> None:
        reported = reports()
        task = asyncio.ensure_future(fail())
        task.add_done_callback(retrieve_exception)
        await turns()
        assert isinstance(retrieve_exception(task), Unavailable)
        del task
        gc.collect()
        assert not reported

    @async_test
    async def test_a_cancelled_future_has_no_error(self) -> None:
        task = asyncio.ensure_future(forever())
        await cancel_and_wait(task)
        assert retrieve_exception(task) is None

    @async_test
    async def test_a_failed_future_raises_its_error(self) -> None:
        with pytest.raises(Unavailable):
            await failed_future(Unavailable())

    @async_test
    async def test_an_outcome_is_forwarded_once(self) -> None:
        loop = asyncio.get_running_loop()
        stored, cancelled = loop.create_future(), loop.create_future()
        stored.set_result("anything")
        cancelled.cancel()
        for source, expected in ((stored, "mine"), (cancelled, None)):
            target: asyncio.Future[str] = loop.create_future()
            forward_outcome(target, "mine", source)
            forward_outcome(target, "other", stored)
            assert (target.cancelled() or target.result()) == (expected or True)
        target = loop.create_future()
        forward_outcome(target, "mine", failed_future(Unavailable()))
        with pytest.raises(Unavailable):
            await target


class TestTasks:
    @async_test
    async def test_tasks_have_ended_once_they_are_cancelled(self) -> None:
        tasks = [asyncio.ensure_future(forever()) for _ in range(3)]
        await cancel_and_wait(None, *tasks)
        assert all(task.cancelled() for task in tasks)
        await cancel_and_wait()
        await cancel_and_wait(None)

    @async_test
    async def test_the_first_that_ends_ends_the_others(self) -> None:
        other = asyncio.ensure_future(forever())
        ended = await first_of(other, asyncio.sleep(0, "first"))
        assert (ended.result(), other.cancelled()) == ("first", True)

    @async_test
    async def test_of_those_that_end_together_the_first_given_counts(self) -> None:
        ended = await first_of(*(asyncio.sleep(0, number) for number in range(5)))
        assert ended.result() == 0

    @async_test
    async def test_all_end_if_whoever_waits_for_the_first_is_cancelled(self) -> None:
        one, other = (asyncio.ensure_future(forever()) for _ in range(2))
        waiting = asyncio.ensure_future(first_of(one, other))
        await turns()
        await cancel_and_wait(waiting)
        assert one.cancelled()
        assert other.cancelled()

    @async_test
    async def test_work_is_finished_before_a_cancellation_counts(self) -> None:
        may_end = asyncio.Event()
        done: list[str] = []

        async def work() -> None:
            await may_end.wait()
            done.append("all of it")

        task = asyncio.ensure_future(finish(work()))
        for _ in range(3):
            await turns()
            task.cancel()
        await turns()
        assert not task.done()
        may_end.set()
        await asyncio.wait([task])
        assert (task.cancelled(), done) == (True, ["all of it"])

    @async_test
    async def test_finished_work_gives_its_result_or_its_error(self) -> None:
        assert await finish(asyncio.sleep(0, 7)) == 7
        with pytest.raises(Unavailable):
            await finish(fail())

    @async_test
    async def test_a_bounded_number_of_items_is_worked_on_at_a_time(self) -> None:
        under_way, most, done = 0, 0, []

        async def work(item: int) -> None:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0)
            under_way -= 1
            done.append(item)

        await for_each(range(20), work, at_once=3)
        assert (most, sorted(done)) == (3, list(range(20)))
        await for_each([], work)

    @async_test
    async def test_the_first_error_ends_what_is_under_way(self) -> None:
        done: list[int] = []

        async def work(item: int) -> None:
            await asyncio.sleep(0)
            if item == 4:
                raise Unavailable
            done.append(item)

        with pytest.raises(Unavailable):
            await for_each(range(100), work, at_once=2)
        assert len(done) < 10

    @async_test
    async def test_an_unexpected_error_is_reported_to_the_event_loop(self) -> None:
        reported, error = reports(), ValueError("nobody expects this")
        report_unexpected("a part failed", error)
        assert reported == [{"message": "a part failed", "exception": error}]


class TestTaskSet:
    @async_test
    async def test_a_task_leaves_the_set_when_it_ends(self) -> None:
        tasks, may_end = TaskSet(), asyncio.Event()
        tasks.start(forever())
        tasks.start(may_end.wait())
        assert len(tasks) == 2
        may_end.set()
        await tasks.wait_for_one()
        assert len(tasks) == 1
        await tasks.cancel()
        assert (len(tasks), list(tasks)) == (0, [])

    @async_test
    async def test_waiting_is_bounded_and_an_empty_set_is_not_waited_for(self) -> None:
        tasks = TaskSet()
        await tasks.wait()
        await tasks.wait_for_one()
        running = tasks.start(forever())
        await tasks.wait(0.001)
        assert not running.done()
        await tasks.cancel()


class TestSingleFlight:
    @async_test
    async def test_who_asks_while_it_runs_shares_the_result(self) -> None:
        flights: SingleFlight[str, int] = SingleFlight()
        runs = 0

        async def work() -> int:
            nonlocal runs
            runs += 1
            await asyncio.sleep(0)
            return runs

        assert await asyncio.gather(*(flights.run("a", work) for _ in range(3))) == [1, 1, 1]
        assert await flights.run("a", work) == 2
        assert sorted(await asyncio.gather(flights.run("a", work), flights.run("b", work))) == [
            4,
            4,
        ]

    @async_test
    async def test_one_who_stops_waiting_does_not_stop_the_others(self) -> None:
        flights: SingleFlight[None, int] = SingleFlight()
        may_end = asyncio.Event()

        async def work() -> int:
            await may_end.wait()
            return 7

        one, other = (asyncio.ensure_future(flights.run(None, work)) for _ in range(2))
        await turns()
        await cancel_and_wait(one)
        may_end.set()
        assert await other == 7

    @async_test
    async def test_an_error_reaches_all_who_wait_and_the_next_tries_again(self) -> None:
        reported = reports()
        flights: SingleFlight[None, None] = SingleFlight()
        for _ in range(2):
            waiting = [flights.run(None, fail) for _ in range(2)]
            errors = await asyncio.gather(*waiting, return_exceptions=True)
            assert [type(error) for error in errors] == [Unavailable] * 2
        gc.collect()
        assert not reported

    @async_test
    async def test_cancel_ends_what_runs(self) -> None:
        flights: SingleFlight[None, None] = SingleFlight()
        waiting = asyncio.ensure_future(flights.run(None, forever))
        await turns()
        await flights.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await flights.cancel()

    @async_test
    async def test_wait_ends_with_what_runs_for_the_keys_that_are_named(self) -> None:
        flights: SingleFlight[str, None] = SingleFlight()
        may_end = asyncio.Event()

        async def work() -> None:
            await may_end.wait()

        running = [asyncio.ensure_future(flights.run(key, work)) for key in ("a", "b")]
        await turns()
        assert list(flights) == ["a", "b"]
        await flights.wait("c")
        waiting = asyncio.ensure_future(flights.wait("a"))
        await turns()
        assert not waiting.done()
        may_end.set()
        await waiting
        await asyncio.gather(*running)
        assert list(flights) == []


class TestSignal:
    @async_test
    async def test_a_wake_ends_every_wait_that_is_under_way_and_no_later_one(self) -> None:
        signal = Signal(ManualClock())
        waiting = [asyncio.ensure_future(signal.wait()) for _ in range(3)]
        await turns()
        signal.wake()
        await turns()
        assert all(one.done() for one in waiting)
        later = asyncio.ensure_future(signal.wait())
        await turns()
        assert not later.done()
        await cancel_and_wait(later)

    @async_test
    async def test_a_wait_ends_after_its_time(self) -> None:
        clock = ManualClock()
        signal = Signal(clock)
        waiting = asyncio.ensure_future(signal.wait(10))
        await turns()
        await clock.advance(9)
        assert not waiting.done()
        await clock.advance(1)
        await turns()
        assert waiting.done()

    @async_test
    async def test_a_wait_ends_with_another_future(self) -> None:
        signal = Signal(ManualClock())
        timer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = asyncio.ensure_future(signal.wait_or(timer))
        await turns()
        timer.set_result(None)
        await turns()
        assert waiting.done()

    @async_test
    async def test_the_next_wake_counts_from_when_it_was_asked_for(self) -> None:
        signal = Signal(ManualClock())
        next_wake = signal.next_wake()
        signal.wake()
        await next_wake

    @async_test
    async def test_waits_that_end_otherwise_leave_nothing_behind(self) -> None:
        clock = ManualClock()
        signal = Signal(clock)
        timer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waits = (signal.wait(), signal.wait(10), signal.wait_or(timer), signal.wait_or(timer))
        waiting = [asyncio.ensure_future(one) for one in waits]
        await turns()
        await cancel_and_wait(*waiting[:3])
        timer.set_result(None)
        await turns()
        signal.forget(signal.next_wake())
        assert not signal._waiters

    @async_test
    async def test_a_wait_that_was_woken_leaves_no_timer_behind(self) -> None:
        clock = ManualClock()
        signal = Signal(clock)
        waiting = asyncio.ensure_future(signal.wait(10))
        await turns()
        signal.wake()
        await waiting
        assert not clock.sleepers


class TestTimers:
    @async_test
    async def test_a_clock_without_timers_gets_a_task_that_sleeps(self) -> None:
        manual, rung = ManualClock(), []

        class PlainClock:
            monotonic, time_us, sleep = manual.monotonic, manual.time_us, manual.sleep

        call_later(PlainClock(), 5, lambda: rung.append(manual.monotonic()))
        call_later(PlainClock(), 3, lambda: rung.append(manual.monotonic())).cancel()
        await manual.advance(10)
        assert rung == [5.0]


class TestAlarm:
    @async_test
    async def test_it_rings_once_at_the_earliest_time_it_was_set_for(self) -> None:
        clock, rung = ManualClock(), []
        alarm = Alarm(clock, lambda: rung.append(clock.monotonic()))
        for when in (5.0, 3.0, 4.0):
            alarm.ring_by(when)
        await clock.advance(10)
        assert rung == [3.0]

    @async_test
    async def test_whoever_is_called_may_set_it_again(self) -> None:
        clock, rung = ManualClock(), []

        def ring() -> None:
            rung.append(clock.monotonic())
            if len(rung) < 3:
                alarm.ring_by(clock.monotonic() + 2)

        alarm = Alarm(clock, ring)
        alarm.ring_by(1.0)
        await clock.advance(10)
        assert rung == [1.0, 3.0, 5.0]

    @async_test
    async def test_a_cancelled_one_does_not_ring(self) -> None:
        clock, rung = ManualClock(), []
        alarm = Alarm(clock, lambda: rung.append(clock.monotonic()))
        alarm.ring_by(1.0)
        alarm.cancel()
        await clock.advance(10)
        assert rung == []
        assert not clock.sleepers


class TestEagerly:
    @async_test
    async def test_what_waits_for_nothing_needs_no_task(self) -> None:
        done = []

        async def work() -> None:
            done.append(1)

        assert run_eagerly(work(), asyncio.create_task) is None
        assert done == [1]

    @async_test
    async def test_what_waits_goes_on_in_a_task(self) -> None:
        gates: list[asyncio.Future[int]] = [
            asyncio.get_running_loop().create_future() for _ in range(2)
        ]

        async def work() -> int:
            return await gates[0] + await gates[1]

        task = run_eagerly(work(), asyncio.create_task)
        assert task is not None
        for gate in gates:
            await turns()
            gate.set_result(21)
        assert await task == 42

    @pytest.mark.parametrize("count", range(3))
    @async_test
    async def test_it_sees_its_cancellation_also_before_the_task_has_begun(
        self, count: int
    ) -> None:
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        seen = []

        async def work() -> None:
            try:
                await gate
            except asyncio.CancelledError:
                seen.append(gate.cancelled())
                raise

        task = run_eagerly(work(), asyncio.create_task)
        assert task is not None
        await turns(count)
        await cancel_and_wait(task)
        assert task.cancelled()
        assert seen == [True], "as for any task that waits for a future"
