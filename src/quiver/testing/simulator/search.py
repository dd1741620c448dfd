"""Many seeds, and the shortest story of one that fails."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec

from quiver.testing.simulator.simulation import (
    DEFAULTS,
    Outcome,
    SimulationSettings,
    simulate,
)

__all__ = ["DEFAULTS", "MIRRORS", "TRANSACTIONS", "outcomes", "shortest", "story_lines"]

MIRRORS = SimulationSettings(mirrors=True)
TRANSACTIONS = SimulationSettings(transactions=True)
_SHORTER_SECONDS = (0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0, 12.0)


def outcomes(
    first: int,
    *,
    count: int | None = None,
    seconds: float | None = None,
    settings: SimulationSettings = DEFAULTS,
) -> Iterator[Outcome]:
    """The outcomes of seeds from ``first`` on: so many of them, or for so long."""
    began, seed = time.monotonic(), first
    while (count is None or seed < first + count) and (
        seconds is None or time.monotonic() - began < seconds
    ):
        yield simulate(seed, settings)
        seed += 1


def shortest(failed: Outcome, settings: SimulationSettings = DEFAULTS) -> Outcome:
    """The same seed with as little time for faults as still makes it fail."""
    for seconds in _SHORTER_SECONDS:
        if seconds >= settings.fault_seconds:
            break
        shorter = msgspec.structs.replace(settings, fault_seconds=seconds)
        outcome = simulate(failed.seed, shorter)
        if outcome.findings:
            return outcome
    return failed


def story_lines(outcome: Outcome) -> list[str]:
    """The story of a seed in lines: what was done to the cluster, who led, what was found."""
    events = [(at, what) for at, what in outcome.story]
    events += [
        (led.at, f"{led.node} leads {led.partition} in epoch {led.epoch}")
        for led in outcome.history.led
    ]
    lines = [f"{at:8.3f} s  {what}" for at, what in sorted(events)]
    return [*lines, *(f"FOUND: {finding}" for finding in outcome.findings)]
