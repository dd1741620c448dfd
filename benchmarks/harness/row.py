"""One line of a benchmark's result: a value, what it is compared with, and what it should be."""

from __future__ import annotations

from typing import Literal

import msgspec


class Target(msgspec.Struct, frozen=True):
    """A limit for a row's value, or for the ratio of its value to the yardstick."""

    of: Literal["value", "ratio"]
    is_: Literal["at least", "at most"]
    limit: float

    def met_by(self, row: Row) -> bool:
        measured = row.value if self.of == "value" else row.ratio
        assert measured is not None, f"{row.name}: a target for the ratio needs a yardstick"
        return measured >= self.limit if self.is_ == "at least" else measured <= self.limit


def at_least(value: float) -> Target:
    return Target("value", "at least", value)


def at_most(value: float) -> Target:
    return Target("value", "at most", value)


def ratio_at_least(ratio: float) -> Target:
    return Target("ratio", "at least", ratio)


def ratio_at_most(ratio: float) -> Target:
    return Target("ratio", "at most", ratio)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    value: float
    unit: str
    yardstick: float | None = None
    """The same quantity, in the same unit, of whatever this is compared with."""
    yardstick_name: str = ""
    ratio: float | None = None
    """Value to yardstick: the median of the rounds' ratios, where there were rounds."""
    target: Target | None = None
    note: str = ""

    @property
    def ok(self) -> bool | None:
        """Whether the target is met; ``None`` if there is none."""
        return None if self.target is None else self.target.met_by(self)
