"""Those who wait until a subscription has something ready, and take nothing by it.

A node that passes a receive on waits like this at the leaders, and asks for messages when it is woken.
As many are woken as there are messages for them, in order of arrival. One that is woken and does not ask
keeps messages from the others for a moment only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Collection, Iterator
from functools import partial

import msgspec

from quiver.aio import call_later
from quiver.model.clock import Clock, Timer

_ASKS_WITHIN_S = 0.05
"""How soon one that was woken is expected to ask. After that others are woken in its place."""


class Watcher(msgspec.Struct, eq=False):
    woken: asyncio.Future[None]
    consumer: str
    partitions: Collection[str] | None


class ReadyWatchers:
    """``again`` is called when those that are left may be needed after all."""

    def __init__(self, clock: Clock, again: Callable[[], None]) -> None:
        self._clock = clock
        self._again = again
        self._watchers: deque[Watcher] = deque()
        self._expected = 0
        """How many were woken and have not asked since."""
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._watchers)

    def __iter__(self) -> Iterator[Watcher]:
        return iter(self._watchers)

    async def wait(self, seconds: float, consumer: str, partitions: Collection[str] | None) -> None:
        """Wait until something may be ready, in line with all who wait, or the time is over."""
        watcher = Watcher(asyncio.get_running_loop().create_future(), consumer, partitions)
        self._watchers.append(watcher)
        timer = call_later(self._clock, seconds, partial(_wake, watcher))
        try:
            await watcher.woken
        except asyncio.CancelledError:
            if not watcher.woken.cancelled():
                self.asked()
                self._again()  # another one: this one will not ask
            raise
        finally:
            timer.cancel()
            with contextlib.suppress(ValueError):
                self._watchers.remove(watcher)

    def wake(self, ready: int) -> None:
        """``ready`` messages are there: wake one for each, but for those that others come for."""
        room = max(1, ready - self._expected)
        while self._watchers and room:
            if _wake(self._watchers.popleft()):
                self._expect()
                room -= 1

    def wake_each(self, is_for: Callable[[Watcher], bool]) -> None:
        """Wake all for whom something is ready."""
        for watcher in [one for one in self._watchers if is_for(one)]:
            self._watchers.remove(watcher)
            _wake(watcher)

    def asked(self) -> None:
        """Somebody asked for messages."""
        self._expected = max(0, self._expected - 1)

    def _expect(self) -> None:
        self._expected += 1
        if self._timer is None:
            self._timer = call_later(self._clock, _ASKS_WITHIN_S, self._expect_no_more)

    def _expect_no_more(self) -> None:
        self._timer = None
        self._expected = 0
        if self._watchers:
            self._again()


def _wake(watcher: Watcher) -> bool:
    if watcher.woken.done():
        return False
    watcher.woken.set_result(None)
    return True
