"""Loops that are measured: something is done again and again for a while."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec

_WARM_UP = 50


class Measured(msgspec.Struct, frozen=True):
    rate: float
    """How often it was done in a second."""
    cpu_us: float
    """The server's CPU for each."""


def repeated(
    do: Callable[[], object], seconds: float, cpu_seconds: Callable[[], float] = lambda: 0.0
) -> Measured:
    """Do something again and again; ``cpu_seconds`` is what the server has used so far."""
    for _ in range(_WARM_UP):
        do()
    times, cpu, began = 0, cpu_seconds(), time.perf_counter()
    while (taken := time.perf_counter() - began) < seconds:
        do()
        times += 1
    return Measured(times / taken, 1e6 * (cpu_seconds() - cpu) / times)


async def repeated_async(
    do: Callable[[], Awaitable[object]],
    seconds: float,
    cpu_seconds: Callable[[], float] = lambda: 0.0,
    at_once: int = 1,
) -> Measured:
    """The same on an event loop, ``at_once`` at the same time."""
    for _ in range(_WARM_UP):
        await do()
    times, cpu, began = 0, cpu_seconds(), time.perf_counter()

    async def work() -> None:
        nonlocal times
        while time.perf_counter() - began < seconds:
            await do()
            times += 1

    await asyncio.gather(*(work() for _ in range(at_once)))
    return Measured(times / (time.perf_counter() - began), 1e6 * (cpu_seconds() - cpu) / times)
