"""How long a program takes for the messages it gets: its pace is measured, and long work is noticed.

A program that has been busy for long leaves what waits for it to others, which may be idle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quiver.client.consumer.session.pace import HandlerPace
from quiver.model.clock import Clock

BUSY_S = 0.1
"""A program that has been busy for so long returns what waits for it."""


class WorkWatch:
    """``on_busy`` is called when the program has been busy for long, if the pace is measured."""

    def __init__(self, clock: Clock, pace: HandlerPace, on_busy: Callable[[], None]) -> None:
        self._clock = clock
        self._pace = pace
        self._on_busy = on_busy
        self._count = 0
        self._since = 0.0
        """How many messages it got last, and when."""
        self._asking = 0
        self._is_busy = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_asked(self) -> bool:
        """Whether somebody waits for a message."""
        return self._asking > 0

    def asked(self) -> None:
        """The program asks for a message: it has handled what it got."""
        self._is_busy = False
        if self._count:
            self._pace.handled(self._count, self._clock.monotonic() - self._since)
            self._count = 0
        self._asking += 1

    def answered(self) -> None:
        """It has got one, or asks no longer."""
        self._asking -= 1

    def gave(self, messages: int) -> None:
        """It may have so many from now on."""
        self._count, self._since = messages, self._clock.monotonic()
        self._is_busy = True
        if self._timer is None and self._pace.is_adaptive:
            self._timer = asyncio.get_running_loop().call_later(BUSY_S, self._check)

    def returned(self, messages: int) -> None:
        """It has not got so many of them."""
        self._count = max(1, self._count - messages)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self._timer = None
        if not self._is_busy or self._asking:
            return
        left_s = self._since + BUSY_S - self._clock.monotonic()
        if left_s > 0:
            self._timer = asyncio.get_running_loop().call_later(left_s, self._check)
        else:
            self._on_busy()
