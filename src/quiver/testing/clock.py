"""Virtual time for tests: hours pass in a moment, and only when the test says so.

``advance`` walks through time from one due sleeper to the next, so a loop that sleeps a second
twenty times within twenty seconds is woken twenty times and reads the right time at each. Sleepers
wake in the order in which they are due; those due together, in the order in which they lay down.
The same program therefore takes the same steps in every run.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from itertools import count

from quiver.model.clock import Timer
from quiver.model.ids import Microseconds

START_US = Microseconds(1_700_000_000_000_000)
"""The date a new ``ManualClock`` shows: 2023-11-14 22:13:20 UTC."""


Sleeper = tuple[int, int, asyncio.Future[None]]
"""When it is due, its place among those that are due together, and what it waits for."""


class ManualClock:
    """A ``Clock`` that stands still until ``advance`` is awaited.

    After each wake-up the event loop gets ``turns`` turns, so that what the sleeper does, and what
    others do because of it, happens before time moves on. Threads and sockets are not waited for:
    a test that needs their work done waits for that work itself.

    Time has whole microseconds, so that ten steps of 0.1 s reach exactly 1 s.
    """

    def __init__(self, *, start_us: Microseconds = START_US, turns: int = 20) -> None:
        self._start_us = start_us
        self._elapsed_us = 0
        self._turns = turns
        self._advancing = False
        self._order = count()
        self._sleepers: list[Sleeper] = []

    def monotonic(self) -> float:
        return self._elapsed_us / 1e6

    def time_us(self) -> Microseconds:
        return Microseconds(self._start_us + self._elapsed_us)

    @property
    def sleepers(self) -> int:
        """How many are asleep now."""
        return len(self._sleepers)

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        sleeper = self._lie_down(seconds)
        try:
            await sleeper[2]
        except asyncio.CancelledError:
            self._forget(sleeper)
            raise

    def call_later(self, seconds: float, call: Callable[[], object]) -> Timer:
        if seconds <= 0:
            return asyncio.get_running_loop().call_soon(call)
        return _ManualTimer(self, self._lie_down(seconds), call)

    def _lie_down(self, seconds: float) -> Sleeper:
        # Never less than one microsecond: a loop that sleeps out the rest of a deadline must not
        # spin when the rest is a rounding error.
        due_us = self._elapsed_us + max(1, _microseconds(seconds))
        sleeper = (due_us, next(self._order), asyncio.get_running_loop().create_future())
        heapq.heappush(self._sleepers, sleeper)
        return sleeper

    def _forget(self, sleeper: Sleeper) -> None:
        if sleeper in self._sleepers:
            self._sleepers.remove(sleeper)
            heapq.heapify(self._sleepers)

    async def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass, waking every sleeper who is due by then, in due order."""
        if seconds < 0:
            raise ValueError(f"time does not go back: advance({seconds})")
        if self._advancing:
            raise RuntimeError("another task is advancing this clock")
        self._advancing = True
        try:
            await self._advance_to(self._elapsed_us + _microseconds(seconds))
        finally:
            self._advancing = False

    async def _advance_to(self, target_us: int) -> None:
        await self._settle()  # tasks only just created lie down at the time it is now
        while self._sleepers and self._sleepers[0][0] <= target_us:
            self._elapsed_us = self._sleepers[0][0]
            while self._sleepers and self._sleepers[0][0] == self._elapsed_us:
                _, _, wake = heapq.heappop(self._sleepers)
                if not wake.done():
                    wake.set_result(None)
            await self._settle()
        self._elapsed_us = target_us

    async def _settle(self) -> None:
        for _ in range(self._turns):
            await asyncio.sleep(0)


class _ManualTimer:
    """A call that is made when a ``ManualClock`` has advanced far enough."""

    def __init__(self, clock: ManualClock, sleeper: Sleeper, call: Callable[[], object]) -> None:
        self._clock = clock
        self._sleeper = sleeper
        self._call = call
        sleeper[2].add_done_callback(self._wake)

    def _wake(self, woken: asyncio.Future[None]) -> None:
        if not woken.cancelled():
            self._call()

    def cancel(self) -> None:
        self._sleeper[2].cancel()
        self._clock._forget(self._sleeper)


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)
