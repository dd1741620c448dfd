"""Evaluates the alert rules about once a second and reports what fires or clears.

Each change becomes one log line, one message in ``__alerts`` and one call of each other receiver.
Evaluation takes at most a small share of the node's time. A report that fails is logged; the alert
itself is still shown.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import structlog

from quiver.aio import cancel_and_wait
from quiver.broker.alerts.alert import Alert
from quiver.broker.alerts.machine import AlertMachine
from quiver.metrics.sample import NodeSample
from quiver.model.clock import Clock

RECENT_MAX = 100
_TIME_SHARE_MAX = 0.02
_WAITING_MAX = 1000

logger = structlog.get_logger()

AlertListener = Callable[[Alert], Awaitable[None]]


class AlertService:
    """Runs between ``start`` and ``stop``. Each change is reported to ``listeners``, in order."""

    def __init__(
        self,
        machine: AlertMachine,
        sample: Callable[[], Awaitable[NodeSample]],
        clock: Clock,
        *,
        interval_s: float,
        listeners: Sequence[AlertListener],
    ) -> None:
        self.recent: deque[Alert] = deque(maxlen=RECENT_MAX)
        """What cleared lately, the newest first."""
        self._machine = machine
        self._sample = sample
        self._clock = clock
        self._interval_s = interval_s
        self._notifiers = [_Notifier(one) for one in listeners]
        self._task: asyncio.Task[None] | None = None

    @property
    def firing(self) -> list[Alert]:
        return self._machine.firing

    @property
    def firing_by_severity(self) -> dict[str, int]:
        return self._machine.firing_by_severity

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        await cancel_and_wait(self._task)
        self._task = None
        for notifier in self._notifiers:
            await notifier.stop()

    async def _run(self) -> None:
        while True:
            began = self._clock.monotonic()
            try:
                await self.evaluate()
            except Exception as error:
                logger.error("alerts could not be evaluated", exc_info=error)
            took_s = self._clock.monotonic() - began
            await self._clock.sleep(max(self._interval_s, took_s / _TIME_SHARE_MAX))

    async def evaluate(self) -> None:
        """Look once at everything."""
        sample = await self._sample()
        for alert in self._machine.evaluate(sample, self._clock.monotonic()):
            facts = {
                "rule": alert.rule,
                "subject": alert.subject,
                "severity": alert.severity,
                "value": alert.value,
                "limit": alert.limit,
            }
            if alert.state == "firing":
                logger.warning("alert fired", **facts)
            else:
                logger.info("alert cleared", **facts)
                self.recent.appendleft(alert)
            for notifier in self._notifiers:
                notifier.notify(alert)


class _Notifier:
    """Notifies one listener, in order and one at a time. One that is too slow misses the oldest."""

    def __init__(self, listener: AlertListener) -> None:
        self._listener = listener
        self._waiting: deque[Alert] = deque(maxlen=_WAITING_MAX)
        self._task: asyncio.Task[None] | None = None

    def notify(self, alert: Alert) -> None:
        self._waiting.append(alert)
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._waiting:
                alert = self._waiting.popleft()
                try:
                    await self._listener(alert)
                except Exception as error:
                    logger.error("alert could not be told", rule=alert.rule, error=str(error))
        finally:
            self._task = None

    async def stop(self) -> None:
        await cancel_and_wait(self._task)
