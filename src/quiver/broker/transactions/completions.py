"""Clients that wait until all participants of a transaction know how it ended.

Each waits without a limit until the decision is durable, and ``COMPLETE_S`` from then on. One timer serves
all of them: they are answered in the order in which they came.
"""

from __future__ import annotations

import asyncio
from collections import deque

from quiver.aio import Alarm
from quiver.model.clock import Clock
from quiver.model.transaction import TransactionId

COMPLETE_S = 3.0
"""How long a client waits for the participants. They hear of the outcome in any case."""

Waiter = asyncio.Future[bool]


class Completions:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiters: dict[TransactionId, list[Waiter]] = {}
        self._limited: deque[tuple[float, TransactionId, Waiter]] = deque()
        """Those whose time is limited, and until when. Some may be answered already."""
        self._alarm = Alarm(clock, self._ring)

    def wait(self, transaction: TransactionId) -> Waiter:
        """Done when all participants know, or with false if that takes too long."""
        waiter: Waiter = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(transaction, []).append(waiter)
        return waiter

    def limit(self, transaction: TransactionId) -> None:
        """The outcome is durable: from now on the time of those who wait is limited."""
        limited = self._limited
        while limited and limited[0][2].done():
            limited.popleft()
        deadline = self._clock.monotonic() + COMPLETE_S
        for waiter in self._waiters.get(transaction, ()):
            limited.append((deadline, transaction, waiter))
            self._alarm.ring_by(deadline)

    def answer(self, transaction: TransactionId, *, is_complete: bool) -> None:
        for waiter in self._waiters.pop(transaction, ()):
            if not waiter.done():
                waiter.set_result(is_complete)

    def fail(self, transaction: TransactionId, error: BaseException) -> None:
        """The outcome could not be stored: nothing is decided."""
        for waiter in self._waiters.pop(transaction, ()):
            if not waiter.done():
                waiter.set_exception(error)

    def close(self) -> None:
        """Answer all whose outcome is durable. The others are answered when that is known."""
        self._alarm.cancel()
        while self._limited:
            self._give_up(*self._limited.popleft()[1:])

    def _ring(self) -> None:
        now, limited = self._clock.monotonic(), self._limited
        while limited and (limited[0][2].done() or limited[0][0] <= now):
            self._give_up(*limited.popleft()[1:])
        if limited:
            self._alarm.ring_by(limited[0][0])

    def _give_up(self, transaction: TransactionId, waiter: Waiter) -> None:
        if not waiter.done():
            waiter.set_result(False)
        waiters = self._waiters.get(transaction)
        if waiters is not None and waiter in waiters:
            waiters.remove(waiter)
            if not waiters:
                del self._waiters[transaction]
