"""Limits how many bytes go by in a second, over all that work at the same time."""

from __future__ import annotations

from quiver.model.clock import Clock


class Pace:
    """``bytes_per_s`` ``None``: as fast as it goes."""

    def __init__(self, clock: Clock, bytes_per_s: float | None = None) -> None:
        self._clock = clock
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0

    async def take(self, size: int) -> None:
        """Wait until what went by before is paid for."""
        if self._bytes_per_s is None:
            return
        now = self._clock.monotonic()
        wait_s = self._free_at - now
        self._free_at = max(now, self._free_at) + size / self._bytes_per_s
        if wait_s > 0:
            await self._clock.sleep(wait_s)
