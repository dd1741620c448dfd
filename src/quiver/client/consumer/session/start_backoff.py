"""The pause after a start that failed.

Where a start has to be stored before the program gets the messages, it can fail for as long as the node
cannot store anything. The node would push the same messages again at once, and again.
"""

from __future__ import annotations

import random

from quiver.client.logger import logger
from quiver.client.transport.backoff import RetryBackoff
from quiver.errors import QuiverError
from quiver.model.clock import Clock

_BACKOFF = RetryBackoff()


class StartBackoff:
    """Grows with each failure in a row."""

    def __init__(
        self, clock: Clock, subscription: str, chance: random.Random | None = None
    ) -> None:
        self._clock = clock
        self._subscription = subscription
        self._chance = chance or random.Random()
        self._failures = 0
        self._until = float("-inf")

    def failed(self, error: QuiverError) -> None:
        if not self._failures:
            logger.warning(
                "messages could not be started: they are asked for again",
                subscription=self._subscription,
                error=str(error),
            )
        self._failures += 1
        pause_s = _BACKOFF.pause_s(self._failures, self._chance)
        self._until = self._clock.monotonic() + pause_s

    def succeeded(self) -> None:
        self._failures = 0

    @property
    def left_s(self) -> float:
        """How long to ask for nothing."""
        return self._until - self._clock.monotonic()
