"""A rate limit as a token bucket that holds one second's worth. No clock: time comes in.

It may be overdrawn: a request that is larger than the bucket passes while the bucket is not empty, and
the next one waits until the debt is paid.
"""

from __future__ import annotations


class TokenBucket:
    def __init__(self, rate: float, now: float, *, room: float | None = None) -> None:
        assert rate > 0
        self._rate = rate
        self._room = room if room is not None else rate
        self._level = self._room
        self._filled = now

    def debt_s(self, now: float) -> float:
        """How long until what was taken is paid for; 0 if it is."""
        self._fill(now)
        return max(0.0, -self._level / self._rate)

    def take(self, amount: float, now: float) -> float:
        """Take it, and tell how long until it is paid for."""
        self._fill(now)
        self._level -= amount
        return max(0.0, -self._level / self._rate)

    def is_full(self, now: float) -> bool:
        self._fill(now)
        return self._level >= self._room

    def _fill(self, now: float) -> None:
        if now > self._filled:
            self._level = min(self._room, self._level + (now - self._filled) * self._rate)
            self._filled = now
