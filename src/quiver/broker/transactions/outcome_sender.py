"""Tells participants how transactions ended, until it is durable with each of them.

Of each participant all that waits is sent together. What fails is sent again, at growing intervals, for as
long as the coordinator leads: the participant may have another leader by then. A participant may show what
ended before it is durable there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import structlog

from quiver.aio import TaskSet, report_unexpected, run_eagerly
from quiver.errors import PartitionNotFound, QuiverError, TopicNotFound
from quiver.model.clock import Clock
from quiver.model.transaction import TransactionId
from quiver.protocol import Participant

AT_ONCE = 64
"""How many participants are told at the same time."""
_SENT_MAX = 10_000
"""How many outcomes one call has."""
_PAUSE_S, _PAUSE_S_MAX = 0.05, 5.0
_COMPLAINT_S = 10.0
_NOT_FOUND_MAX = 5
"""A topic that was not found this often is deleted. A node may hear of a new one a moment later."""

logger = structlog.get_logger()

Outcomes = dict[TransactionId, bool]
"""By transaction: whether it is committed."""
Close = Callable[[Participant, Outcomes], Awaitable[asyncio.Future[Any] | None]]
"""Returns when readers see it. What it gives, if anything, is done when it is durable."""
Told = Callable[[Participant, list[TransactionId]], None]


class OutcomeSender:
    """``close`` tells a participant. ``shown`` is called when its readers see it, then ``confirmed`` when
    it is durable there. Both are called of a participant that is no more."""

    def __init__(self, close: Close, shown: Told, confirmed: Told, clock: Clock) -> None:
        self._close = close
        self._shown = shown
        self._confirmed = confirmed
        self._clock = clock
        self._waiting: dict[Participant, Outcomes] = {}
        self._sending = TaskSet()
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._is_stopped = False

    def send(self, outcomes: Mapping[Participant, Outcomes]) -> None:
        """Tell each participant at once, or after what it is being told now."""
        for participant, told in outcomes.items():
            waiting = self._waiting.get(participant)
            if waiting is None:
                self._waiting[participant] = dict(told)
                run_eagerly(self._send(participant), self._sending.start)
            else:
                waiting.update(told)

    async def stop(self) -> None:
        self._is_stopped = True
        await self._sending.cancel()

    async def _send(self, participant: Participant) -> None:
        """Until nothing waits for the participant."""
        waiting, pause_s, not_found = self._waiting[participant], _PAUSE_S, 0
        failing_since, complained_at = self._clock.monotonic(), self._clock.monotonic()
        while waiting:
            told = dict(list(waiting.items())[:_SENT_MAX])
            error, durable = await self._try(participant, told)
            is_gone = isinstance(error, TopicNotFound | PartitionNotFound)
            not_found = not_found + 1 if is_gone else 0
            if error is None or not_found >= _NOT_FOUND_MAX:
                for transaction in told:
                    del waiting[transaction]
                self._shown(participant, list(told))
                if durable is None:
                    self._confirmed(participant, list(told))
                else:
                    durable.add_done_callback(partial(self._stored, participant, told))
                pause_s, failing_since = _PAUSE_S, self._clock.monotonic()
                continue
            now = self._clock.monotonic()
            if now - complained_at >= _COMPLAINT_S:
                complained_at = now
                logger.warning(
                    "a partition cannot be told how transactions ended",
                    topic=participant.topic,
                    partition=participant.partition,
                    transactions=len(waiting),
                    seconds=round(now - failing_since),
                    error=error.message,
                )
            await self._clock.sleep(pause_s)
            pause_s = min(_PAUSE_S_MAX, 2 * pause_s)
        del self._waiting[participant]

    def _stored(
        self, participant: Participant, told: Outcomes, durable: asyncio.Future[Any]
    ) -> None:
        """It is durable, or cannot be: then the participant is told again."""
        is_lost = durable.cancelled() or durable.exception() is not None
        if self._is_stopped:
            return
        if is_lost:
            self.send({participant: told})
        else:
            self._confirmed(participant, list(told))

    async def _try(
        self, participant: Participant, told: Outcomes
    ) -> tuple[QuiverError | None, asyncio.Future[Any] | None]:
        async with self._turns:
            try:
                return None, await self._close(participant, told)
            except QuiverError as error:
                return error, None
            except Exception as error:
                report_unexpected("a partition was not told how transactions ended", error)
                return QuiverError(str(error)), None
