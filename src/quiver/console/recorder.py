"""Fills the history: takes a snapshot every few seconds, whether or not somebody looks.

A snapshot that fails is left out. It is tried again at the next step.
"""

from __future__ import annotations

import asyncio

import structlog

from quiver.aio import cancel_and_wait
from quiver.client import AsyncClient
from quiver.console import history
from quiver.console.collector import MetricsCollector
from quiver.console.history import MetricsHistory
from quiver.errors import QuiverError
from quiver.model.clock import Clock

logger = structlog.get_logger()


class HistoryRecorder:
    """``start`` it, and ``stop`` it whatever happens. It closes the client."""

    def __init__(self, client: AsyncClient, clock: Clock, into: MetricsHistory) -> None:
        self._client = client
        self._clock = clock
        self._collector = MetricsCollector(client, clock)
        self._into = into
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        await cancel_and_wait(self._task)
        await self._client.close()

    async def _run(self) -> None:
        while True:
            await self._clock.sleep(history.STEP_S)
            try:
                self._into.add(await self._collector.take())
            except QuiverError:  # as of a cluster without a leader: a chart with a gap tells it
                continue
            except Exception as error:
                logger.error("the console's charts lack a point", exc_info=error)
