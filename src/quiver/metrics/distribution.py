"""How often values of which size were seen: a histogram that costs a fraction of a microsecond.

It belongs to one event loop, so it needs no lock. ``weight`` lets a batch be counted in one step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

PUBLISH_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
FSYNC_BOUNDS = (0.0001, 0.00025, *PUBLISH_BOUNDS)
QUEUE_BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800, 3600, 21600, 86400)


class Distribution:
    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """How many were within each bound and above the one before it; the last, above all."""
        self.total = 0.0

    def add(self, value: float, weight: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += weight
        self.total += value * weight


def merged(bounds: tuple[float, ...], some: Iterable[Distribution]) -> Distribution:
    """All of them as one; they have these bounds."""
    whole, given = Distribution(bounds), list(some)
    if given:
        whole.counts = [sum(counts) for counts in zip(*(one.counts for one in given), strict=True)]
        whole.total = sum(one.total for one in given)
    return whole
