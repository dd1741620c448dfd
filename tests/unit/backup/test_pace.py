"""A rate is kept over all that share it."""

from __future__ import annotations

import asyncio

from quiver.backup.pace import Pace
from quiver.model.clock import Clock


class Slept(Clock):
    """A clock that only moves by sleeping."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def time_us(self) -> int:  # type: ignore[override]
        return round(self.now * 1e6)

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_bytes_wait_for_those_before_them() -> None:
    clock = Slept()
    pace = Pace(clock, 1000)

    async def take() -> None:
        for _ in range(5):
            await pace.take(500)

    asyncio.run(take())
    assert clock.now == 102.0


def test_without_a_rate_nothing_waits() -> None:
    clock = Slept()
    asyncio.run(Pace(clock).take(1 << 40))
    assert clock.now == 100.0
