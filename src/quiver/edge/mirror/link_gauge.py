"""Whether a link is far or slow, by how long answers take to arrive. Pure.

What is near costs the source less uncompressed. One answer that arrived quickly says more than several that
did not: a busy machine can only make a near link look far.
"""

from __future__ import annotations

from collections import deque

_ANSWERS = 8
"""How many are looked at: a link that changes is noticed after so many."""
_NEAR_S = 0.01
_FAST_BYTES_PER_S = 50e6
_UNPACKED_BYTES_PER_S = 250e6
"""A source reads and compresses more than that: what it takes for this is not the link's."""


class LinkGauge:
    """``note`` answers that the source had at once. Nothing is known before the first."""

    def __init__(self) -> None:
        self._quick: deque[bool] = deque(maxlen=_ANSWERS)

    def note(self, took_s: float, arrived_bytes: int, unpacked_bytes: int) -> None:
        """An answer took so long. Meanwhile all answers together had so many bytes."""
        expected_s = arrived_bytes / _FAST_BYTES_PER_S + unpacked_bytes / _UNPACKED_BYTES_PER_S
        self._quick.append(took_s <= _NEAR_S + expected_s)

    @property
    def is_far(self) -> bool:
        """Whether compressed answers would arrive sooner, or burden the link less."""
        return bool(self._quick) and not any(self._quick)
