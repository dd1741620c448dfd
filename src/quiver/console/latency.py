"""How long publishes took between two looks, out of counts that only ever grow.

A node tells how many publishes were acknowledged within each of some bounds since it started. What
lies between two bounds is taken to be spread evenly, as Prometheus does it.
"""

from __future__ import annotations

import re
from itertools import pairwise
from math import inf

_BUCKET = re.compile(r"quiver_publish_seconds_bucket\{le=(.+)\}")
Buckets = list[tuple[float, float]]
"""Bounds in seconds, and how many were within each; the last bound is infinite."""


class PublishLatency:
    def __init__(self) -> None:
        self._before: Buckets = []

    def between(self, counters: dict[str, float], *shares: float) -> list[float | None]:
        """Within how many milliseconds these shares of the publishes since the last look were done.

        ``None`` if there were none, or the node does not tell.
        """
        now = sorted(
            (float(found[1]), count)
            for name, count in counters.items()
            if (found := _BUCKET.fullmatch(name))
        )
        before, self._before = self._before, now
        if not now or len(before) != len(now):
            return [None for _ in shares]
        new = [(bound, count - old) for (bound, count), (_, old) in zip(now, before, strict=True)]
        if new[-1][1] <= 0 or any(count < 0 for _, count in new):
            return [None for _ in shares]  # nothing was published, or the node has begun anew
        return [_quantile(new, share) * 1000 for share in shares]


def _quantile(buckets: Buckets, share: float) -> float:
    wanted = share * buckets[-1][1]
    for (low, below), (high, within) in pairwise([(0.0, 0.0), *buckets]):
        if within >= wanted and within > below:
            return low if high == inf else low + (high - low) * (wanted - below) / (within - below)
    return buckets[-2][0]
