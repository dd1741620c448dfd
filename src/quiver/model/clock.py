"""Time in Quiver: a clock that is passed in, never global.

Code that waits, expires or stamps takes a ``Clock``, so that tests and the simulator can run on virtual
time. ``SystemClock`` is the operating system's time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from quiver.model.ids import Microseconds


class Timer(Protocol):
    """A call that is to be made later."""

    def cancel(self) -> object:
        """Make no call. Without effect once it is made."""


class Clock(Protocol):
    """The source of time."""

    def monotonic(self) -> float:
        """Seconds since a fixed point; never goes back. For durations and deadlines."""

    def time_us(self) -> Microseconds:
        """The date and time. It may jump, so it is for timestamps, not for deadlines."""

    async def sleep(self, seconds: float) -> None:
        """Return when ``seconds`` have passed on ``monotonic``; at once if not positive."""


class SystemClock:
    """The operating system's time."""

    def monotonic(self) -> float:
        return time.monotonic()

    def time_us(self) -> Microseconds:
        return Microseconds(time.time_ns() // 1000)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def call_later(self, seconds: float, call: Callable[[], object]) -> Timer:
        """Make a call when ``seconds`` have passed, without a task that sleeps until then."""
        return asyncio.get_running_loop().call_later(max(seconds, 0.0), call)
