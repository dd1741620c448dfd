"""Waking those who wait for something, or letting them go on after a while."""

from __future__ import annotations

import asyncio

from quiver.model.clock import Clock


class Signal:
    """Each ``wake`` ends every wait that is under way."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiters: list[asyncio.Future[None]] = []

    def wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def next_wake(self) -> asyncio.Future[None]:
        """Done with the next ``wake``, counted from this very moment."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        return waiter

    async def wait(self, seconds: float | None = None) -> None:
        """Until the next ``wake``; for ``seconds`` at most, if given."""
        waiter = self.next_wake()
        if seconds is None:
            await waiter
            return
        timer = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait([waiter, timer], return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            self.forget(waiter)

    def forget(self, waiter: asyncio.Future[None]) -> None:
        """Nobody waits for it any more."""
        if not waiter.done():
            waiter.cancel()
            self._waiters.remove(waiter)
