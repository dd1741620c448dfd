"""Published messages as the delivery machine sees them: offsets, keys and times, never payloads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, cast

import msgspec
import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from quiver.broker.delivery.machine.offset_sets import (
    Numbers,
    offset_numbers,
    offset_range,
    offset_set,
)
from quiver.broker.delivery.machine.ready import DEFAULT_PRIORITY
from quiver.model.batch import StoredBatch
from quiver.model.filter.texts import rows_by_text
from quiver.model.ids import Microseconds, Offset
from quiver.model.schema import COLUMN_BIT

NEVER = -1
"""In place of a time that a message does not have."""


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that can be delivered now. Columns are ``None`` where the batch has none."""

    base_offset: Offset
    count: int
    time: Microseconds
    priority: Numbers | None = None
    deliver_at: Numbers | None = None
    expires_at: Numbers | None = None
    key: pa.Array | None = None
    tenants: dict[str, Numbers] | None = None
    """The rows of each tenant, where the subscription is fair; those of no tenant are left out."""
    passed: Numbers | None = None
    """Which messages the subscription's filter lets through; ``None``: all."""

    @property
    def next_offset(self) -> Offset:
        return Offset(self.base_offset + self.count)

    def passed_from(self, start: int) -> BitMap64:
        """The offsets from ``start`` on that the filter lets through."""
        if self.passed is None:
            return offset_range(max(start, self.base_offset), self.next_offset)
        passed = self._offsets(np.flatnonzero(self.passed))
        passed.remove_range(0, start)
        return passed

    def by_priority(self) -> Iterator[tuple[int, BitMap64]]:
        """The offsets of each priority that is not the default one."""
        if self.priority is None:
            return
        offsets = (np.argsort(self.priority, kind="stable") + self.base_offset).tolist()
        ends = np.cumsum(np.bincount(self.priority)).tolist()
        for priority, (start, end) in enumerate(pairwise([0, *ends])):
            if start < end and priority != DEFAULT_PRIORITY:
                yield priority, BitMap64(offsets[start:end])

    def by_tenant(self) -> Iterator[tuple[str, BitMap64]]:
        """The offsets of each tenant."""
        for tenant, rows in (self.tenants or {}).items():
            yield tenant, self._offsets(rows)

    def timed(self, times: Numbers, among: BitMap64) -> tuple[Numbers, Numbers]:
        """Times and offsets of those messages among these that have a time."""
        chosen = offset_numbers(self._offsets(np.flatnonzero(times != NEVER)) & among)
        return times[chosen - self.base_offset], chosen

    def _offsets(self, rows: Numbers) -> BitMap64:
        return offset_set(rows + self.base_offset)


def arrival_of(
    entry: StoredBatch, *, with_keys: bool = False, fairness: str | None = None
) -> Arrival:
    """An entry as the machine sees it; its body is decoded only if it decides something."""
    wanted = [name for name in _READERS if with_keys or name != "key"]
    wanted = [name for name in wanted if entry.columns & COLUMN_BIT[name]]
    columns: dict[str, Any] = {}
    if wanted:
        rows = entry.record_batch()
        columns = {name: _READERS[name](rows.column(name)) for name in wanted}
    if fairness is not None and entry.columns & COLUMN_BIT[fairness.split(".")[0]]:
        columns["tenants"] = rows_by_text(entry.record_batch(), fairness)
    return Arrival(
        base_offset=entry.base_offset, count=entry.count, time=entry.append_time, **columns
    )


def priorities(values: pa.Array) -> Numbers:
    return cast(Numbers, values.fill_null(DEFAULT_PRIORITY).to_numpy())


def times(values: pa.Array) -> Numbers:
    return cast(Numbers, values.cast(pa.int64()).fill_null(NEVER).to_numpy())


_READERS: dict[str, Callable[[pa.Array], Any]] = {
    "priority": priorities,
    "deliver_at": times,
    "expires_at": times,
    "key": lambda values: values,
}
"""Columns that decide when and in what order a message is delivered."""
