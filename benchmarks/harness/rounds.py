"""Fair comparisons on a noisy machine: the contestants take turns, and medians are compared."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable

import msgspec


class Compared(msgspec.Struct, frozen=True):
    """Medians over the rounds of what was measured, and of the ratio within each round."""

    value: float
    yardstick: float
    ratio: float


def compare(rounds: int, subject: Callable[[], float], yardstick: Callable[[], float]) -> Compared:
    """Measure both in every round, each first in every other one.

    The subject is measured once before the rounds, for nothing: to warm up, and because a yardstick
    may depend on what the subject did.
    """
    assert rounds > 0
    subject()
    values: list[float] = []
    yardsticks: list[float] = []
    for turn in range(rounds):
        for who in (subject, yardstick) if turn % 2 else (yardstick, subject):
            (values if who is subject else yardsticks).append(who())
    return Compared(
        value=statistics.median(values),
        yardstick=statistics.median(yardsticks),
        ratio=statistics.median(
            value / other for value, other in zip(values, yardsticks, strict=True)
        ),
    )


def median_of(rounds: int, measure: Callable[[], float]) -> float:
    assert rounds > 0
    return statistics.median(measure() for _ in range(rounds))


def in_turn(contestants: Iterable[str], turn: int) -> list[str]:
    """The contestants in their order, in every other round from the last to the first."""
    ordered = list(contestants)
    return ordered[::-1] if turn % 2 else ordered
