"""Trends of a value: how long it has grown, and how much was added recently.

Pure and bounded. Time comes in with each call.
"""

from __future__ import annotations

from collections import deque

STEPS = 30
"""How many moments of a window are remembered."""


class Growth:
    """For how long a number has grown: looked at now and then, it was higher each time."""

    __slots__ = ("_level", "_looked", "_since", "_step_s")

    def __init__(self, step_s: float, level: float, now: float) -> None:
        self._step_s = step_s
        self._level = level
        self._looked = self._since = now

    def seconds(self, level: float, now: float) -> float:
        if level < self._level:
            self._level, self._looked, self._since = level, now, now
        elif now - self._looked >= self._step_s:
            if level == self._level:
                self._since = now
            self._level, self._looked = level, now
        return self._looked - self._since


class Added:
    """How much was added to a number within a window; what is taken away does not count."""

    __slots__ = ("_added", "_last", "_moments", "_window_s")

    def __init__(self, window_s: float, first: float, now: float) -> None:
        self._window_s = window_s
        self._last = first
        self._added = 0.0
        self._moments: deque[tuple[float, float]] = deque([(now, 0.0)])

    def lately(self, level: float, now: float) -> float:
        self._added += max(0.0, level - self._last)
        self._last = level
        moments = self._moments
        if now - moments[-1][0] >= self._window_s / STEPS:
            moments.append((now, self._added))
        while len(moments) > 1 and moments[1][0] <= now - self._window_s:
            moments.popleft()
        return self._added - moments[0][1]
