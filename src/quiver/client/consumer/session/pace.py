"""The pace of a program: how many messages it should have at hand. A pure machine.

A program that takes long for a message has one at a time, so that others are not kept waiting. One
that is quick has as many as it handles while the next are on their way. Time comes in with each call.
"""

from __future__ import annotations

WINDOW_MAX = 2000
STARTED_MAX = 500
_WINDOW_S = 0.1
"""A window holds what the program handles in this time."""
_STARTED_S = 0.002
"""Messages are started together for this much work: fewer frames, and few in hand at a time."""
_FIRST_WINDOW = 10
_GROWTH = 4
"""By how much the estimate may fall at a time: one message that was quick does not say much."""


class HandlerPace:
    """``fixed`` is a window that the program chose."""

    def __init__(self, fixed: int | None = None) -> None:
        self._fixed = fixed
        self._message_s: float | None = None

    @property
    def is_adaptive(self) -> bool:
        return self._fixed is None

    @property
    def window(self) -> int:
        """How many messages may wait for the program."""
        if self._fixed is not None:
            return self._fixed
        if self._message_s is None:
            return _FIRST_WINDOW
        return max(1, min(WINDOW_MAX, int(_WINDOW_S / self._message_s)))

    @property
    def started(self) -> int:
        """How many messages to start together."""
        if self._message_s is None:
            return 1
        return max(1, min(STARTED_MAX, int(_STARTED_S / self._message_s)))

    def handled(self, messages: int, seconds: float) -> None:
        """The program came back after so long with so many messages."""
        each = max(seconds / messages, 1e-6)
        if self._message_s is None:
            self._message_s = max(each, _STARTED_S / _GROWTH)
        elif each > self._message_s:
            self._message_s = each
        else:
            self._message_s = max((self._message_s + each) / 2, self._message_s / _GROWTH)
