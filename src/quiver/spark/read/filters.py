"""Filters that Spark pushes down, as bounds on what is read.

Only conditions on topic, partition, offset and timestamp bound anything; of the others Spark takes
care itself. The bounds hold for every row that can pass, so leaving out the rest loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from quiver.model.message import time_us_of
from quiver.spark.offsets import Range


class Pushed:
    """What the filters together say of the rows that pass."""

    def __init__(self, filters: Iterable[Filter] = ()) -> None:
        self.since_us: int | None = None
        self.until_us: int | None = None
        """Not included."""
        self._first: int | None = None
        self._last: int | None = None
        self._among: dict[str, set[Any]] = {}
        for one in filters:
            column = getattr(one, "attribute", None)
            if isinstance(column, tuple) and len(column) == 1:
                self._take(str(column[0]), one)

    def offsets_within(self, one: Range) -> tuple[int, int]:
        """The offsets of the range that can pass, its end not included."""
        for name, value in (("topic", one.topic), ("partition", one.partition)):
            if value not in self._among.get(name, {value}):
                return one.start, one.start
        start = one.start if self._first is None else max(one.start, self._first)
        end = one.end if self._last is None else min(one.end, self._last + 1)
        return start, end

    def _take(self, column: str, one: Filter) -> None:
        if column in ("topic", "partition"):
            self._take_member(column, one)
        elif column == "offset":
            self._take_offset(one)
        elif column == "timestamp":
            self._take_time(one)

    def _take_member(self, column: str, one: Filter) -> None:
        if isinstance(one, EqualTo | EqualNullSafe):
            values = {one.value}
        elif isinstance(one, In):
            values = set(one.value)
        else:
            return
        self._among[column] = values & self._among.get(column, values)

    def _take_offset(self, one: Filter) -> None:
        low, high = _bounds(one, int)
        self._first = _later(self._first, low)
        self._last = _sooner(self._last, high)

    def _take_time(self, one: Filter) -> None:
        if isinstance(getattr(one, "value", None), datetime):
            low, high = _bounds(one, time_us_of)
            self.since_us = _later(self.since_us, low)
            self.until_us = _sooner(self.until_us, None if high is None else high + 1)


def _bounds(one: Filter, number: Callable[[Any], int]) -> tuple[int | None, int | None]:
    """The lowest and the highest whole number that passes, where there is one."""
    low: int | None = None
    high: int | None = None
    if isinstance(one, In):
        if one.value and all(value is not None for value in one.value):
            numbers = [number(value) for value in one.value]
            low, high = min(numbers), max(numbers)
    elif getattr(one, "value", None) is not None:
        value = number(getattr(one, "value"))  # noqa: B009 - only some filters have one
        if isinstance(one, EqualTo | EqualNullSafe):
            low = high = value
        elif isinstance(one, GreaterThan | GreaterThanOrEqual):
            low = value + isinstance(one, GreaterThan)
        elif isinstance(one, LessThan | LessThanOrEqual):
            high = value - isinstance(one, LessThan)
    return low, high


def _later(known: int | None, new: int | None) -> int | None:
    return known if new is None else new if known is None else max(known, new)


def _sooner(known: int | None, new: int | None) -> int | None:
    return known if new is None else new if known is None else min(known, new)
