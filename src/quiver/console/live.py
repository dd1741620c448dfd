"""Live metrics for the console, collected once for all viewers.

Whoever shares a client shares its frames. A frame is made when somebody asks and the last is a second
old, and seldom enough that making them takes a small share of the node's time: where a frame takes
long, because there is much to look at or the node is busy, the next comes later.
"""

from __future__ import annotations

import asyncio
import contextlib
from weakref import WeakKeyDictionary

import msgspec

from quiver.aio import SingleFlight
from quiver.client import AsyncClient
from quiver.console.collector import MetricsCollector
from quiver.model.clock import Clock

FRESH_S = 0.9
TIME_SHARE_MAX = 0.05
WAIT_S = 2.0
_encode = msgspec.json.Encoder().encode


class LiveMetrics:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._views: WeakKeyDictionary[AsyncClient, _View] = WeakKeyDictionary()

    async def frame(self, client: AsyncClient) -> str | None:
        """The newest frame; an older one, or none, if a new one takes too long."""
        view = self._views.get(client)
        if view is None:
            view = self._views[client] = _View(MetricsCollector(client, self._clock), self._clock)
        return await view.frame()

    async def close(self) -> None:
        for view in list(self._views.values()):
            await view.close()


class _View:
    """What the viewers with one client see."""

    def __init__(self, collector: MetricsCollector, clock: Clock) -> None:
        self._collector = collector
        self._clock = clock
        self._text: str | None = None
        self._fresh_until = 0.0
        self._making: SingleFlight[None, None] = SingleFlight()

    async def frame(self) -> str | None:
        if self._text is None or self._clock.monotonic() >= self._fresh_until:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WAIT_S):
                    await self._making.run(None, self._make)
        return self._text

    async def _make(self) -> None:
        began = self._clock.monotonic()
        try:
            self._text = _encode(await self._collector.take()).decode()
        finally:
            now = self._clock.monotonic()
            self._fresh_until = now + max(FRESH_S, (now - began) / TIME_SHARE_MAX)

    async def close(self) -> None:
        await self._making.cancel()
