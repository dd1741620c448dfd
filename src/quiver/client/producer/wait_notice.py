"""Says in the log why a producer's messages wait, so that a silent program is not a riddle."""

from __future__ import annotations

from quiver.client.logger import logger
from quiver.errors import QuiverError
from quiver.model.clock import Clock

_FIRST_S = 1.0
"""Shorter waits are common, and nobody asks."""
_AGAIN_S = 30.0


class WaitNotice:
    """One for all partitions of a producer."""

    def __init__(self, clock: Clock, topic: str) -> None:
        self._clock = clock
        self._topic = topic
        self._told = float("-inf")

    def waits(self, since: float, error: QuiverError) -> None:
        """A batch has waited since then, and could not be sent once more."""
        now = self._clock.monotonic()
        if now - since >= _FIRST_S and now - self._told >= _AGAIN_S:
            self._told = now
            logger.warning(
                "messages wait to be published",
                topic=self._topic,
                waited_s=round(now - since),
                code=error.code,
                error=error.message,
            )
