"""When a process that ended is started again: at once, but ever later if it does not last. Pure."""

from __future__ import annotations

LASTS_S = 10.0
"""A process that lived this long had a good start: the next one comes at once."""
FIRST_PAUSE_S = 0.5
PAUSE_S_MAX = 10.0


class Restarts:
    def __init__(self) -> None:
        self._started: dict[int, float] = {}
        self._short_lives: dict[int, int] = {}

    def started(self, number: int, now: float) -> None:
        self._started[number] = now

    def pause_s(self, number: int, now: float) -> float:
        """How long to wait before the process with this number, which ended, is started again."""
        lived_s = now - self._started[number]
        short_lives = 0 if lived_s >= LASTS_S else self._short_lives.get(number, 0) + 1
        self._short_lives[number] = short_lives
        if short_lives <= 1:
            return 0.0
        return min(PAUSE_S_MAX, FIRST_PAUSE_S * 2.0 ** min(short_lives - 2, 10))
