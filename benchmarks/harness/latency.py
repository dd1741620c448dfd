"""Latencies at a steady rate: whatever is late counts from when it should have begun."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence

from benchmarks.harness.row import Row, at_most


async def at_rate(
    rate: float, count: int, do: Callable[[int], Awaitable[object]]
) -> tuple[list[float], list[float]]:
    """Do something ``count`` times, ``rate`` times in a second, however long each takes.

    When each was due to begin, and the seconds from then until it was done.
    """
    due, taken = [0.0] * count, [0.0] * count

    async def one(place: int) -> None:
        await do(place)
        taken[place] = time.monotonic() - due[place]

    tasks = []
    began = time.monotonic()
    for place in range(count):
        due[place] = began + place / rate
        early = due[place] - time.monotonic()
        if early > 0:
            await asyncio.sleep(early)
        tasks.append(asyncio.create_task(one(place)))
    await asyncio.gather(*tasks)
    return due, taken


def percentiles_ms(seconds: Sequence[float]) -> tuple[float, float]:
    """p50 and p99, in milliseconds."""
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return cuts[49] * 1000, cuts[98] * 1000


def latency_rows(
    name: str,
    rounds: Sequence[Sequence[float]],
    limits_ms: tuple[float, float],
    yardstick: Sequence[Sequence[float]] = (),
    yardstick_name: str = "",
    note: str = "",
) -> list[Row]:
    """A row for p50 and one for p99, each the median of the rounds."""
    measured = [percentiles_ms(one) for one in rounds]
    bare = [percentiles_ms(one) for one in yardstick]
    rows = []
    for place, (percentile, limit) in enumerate(zip(("p50", "p99"), limits_ms, strict=True)):
        value = statistics.median(one[place] for one in measured)
        other = statistics.median(one[place] for one in bare) if bare else None
        rows.append(
            Row(
                name=f"{name}, {percentile}",
                value=value,
                unit="ms",
                yardstick=other,
                yardstick_name=yardstick_name if bare else "",
                ratio=None if other is None else value / other,
                target=at_most(limit),
                note=note if place == 0 else "",
            )
        )
    return rows
