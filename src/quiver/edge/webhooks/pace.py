"""The pace of pushes to an endpoint: faster while it keeps up, half as fast when it fails.

A pure machine: time comes in with each call. Invariant: ``window`` stays between 1 and the limit.
"""

from __future__ import annotations

PAUSE_S_MIN, PAUSE_S_MAX = 0.5, 60.0


class Pace:
    """Additive increase, multiplicative decrease of the requests under way at a time."""

    def __init__(self, limit: int, slow_s: float) -> None:
        assert limit >= 1
        self._limit = limit
        self._slow_s = slow_s
        self._failures = 0
        self._not_before = 0.0
        self.window = 1.0

    def room(self, now: float, under_way: int) -> int:
        """How many more requests may be begun."""
        if now < self._not_before:
            return 0
        return max(0, (1 if self._failures else int(self.window)) - under_way)

    def wait_s(self, now: float) -> float | None:
        """How long to wait for a pause to end; ``None`` if there is none."""
        left = self._not_before - now
        return left if left > 0 else None

    def succeeded(self, seconds: float) -> None:
        self._failures = 0
        if seconds > self._slow_s:
            self.window = max(1.0, self.window / 2)
        else:
            self.window = min(float(self._limit), self.window + 1 / self.window)

    def failed(self, now: float, retry_after_s: float = 0.0) -> None:
        self._failures += 1
        self.window = max(1.0, self.window / 2)
        pause_s = min(PAUSE_S_MAX, PAUSE_S_MIN * 2 ** min(self._failures - 1, 10))
        pause_s = max(pause_s, min(retry_after_s, PAUSE_S_MAX))
        self._not_before = max(self._not_before, now + pause_s)
