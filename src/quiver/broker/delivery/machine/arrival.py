"""Published messages as the delivery machine sees them: offsets, keys and times, never payloads.

An ``Arrival`` is one batch, read from its body. An ``IndexedArrival`` is a part of the log, of whatever
size, known from the index beside its segment alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

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
from quiver.log.delivery_index import DeliverySpan
from quiver.model.batch import StoredBatch
from quiver.model.delivery_columns import NEVER, priorities, rows_by_priority, times
from quiver.model.envelope import is_hidden
from quiver.model.filter.texts import rows_by_text
from quiver.model.ids import Microseconds, Offset
from quiver.model.schema import COLUMN_BIT


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

    @property
    def published(self) -> Iterable[tuple[int, int]]:
        """First offsets of batches, and when these were published."""
        return ((self.base_offset, self.time),)

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
        for priority, rows in rows_by_priority(self.priority):
            yield priority, self._offsets(rows)

    def by_tenant(self) -> Iterator[tuple[str, BitMap64]]:
        """The offsets of each tenant."""
        for tenant, rows in (self.tenants or {}).items():
            yield tenant, self._offsets(rows)

    def delays(self, among: BitMap64) -> tuple[Numbers, Numbers] | None:
        """Times and offsets of those messages among these that are delayed."""
        return None if self.deliver_at is None else self._timed(self.deliver_at, among)

    def expiries(self, among: BitMap64) -> tuple[Numbers, Numbers] | None:
        """Times and offsets of those messages among these that expire."""
        return None if self.expires_at is None else self._timed(self.expires_at, among)

    def _timed(self, times: Numbers, among: BitMap64) -> tuple[Numbers, Numbers]:
        chosen = offset_numbers(self._offsets(np.flatnonzero(times != NEVER)) & among)
        return times[chosen - self.base_offset], chosen

    def _offsets(self, rows: Numbers) -> BitMap64:
        return offset_set(rows + self.base_offset)


class IndexedArrival(msgspec.Struct, frozen=True):
    """A part of the log as its indexes tell it, for the subscription of this name.

    Times of publishing are those of some batches. Keys, tenants and filters need the bodies.
    """

    span: DeliverySpan
    name: str
    key: None = None

    @property
    def base_offset(self) -> Offset:
        return self.span.base_offset

    @property
    def next_offset(self) -> Offset:
        return self.span.next_offset

    @property
    def published(self) -> Iterable[tuple[int, int]]:
        bases, times = self.span.published_bases, self.span.published_times
        return zip(bases.tolist(), times.tolist(), strict=True)

    def passed_from(self, start: int) -> BitMap64:
        """The offsets from ``start`` on that are not hidden, nor for another subscription."""
        passed = offset_range(max(start, self.base_offset), self.next_offset)
        for name, offsets in self.span.targets.items():
            if name != self.name:
                passed -= offsets
        if self.span.hidden is not None:
            passed -= self.span.hidden
        return passed

    def by_priority(self) -> Iterable[tuple[int, BitMap64]]:
        return self.span.priorities.items()

    def by_tenant(self) -> Iterable[tuple[str, BitMap64]]:
        return ()

    def delays(self, among: BitMap64) -> tuple[Numbers, Numbers] | None:
        return _timed_among(self.span.delays, among)

    def expiries(self, among: BitMap64) -> tuple[Numbers, Numbers] | None:
        return _timed_among(self.span.expiries, among)


def _timed_among(rows: Numbers, among: BitMap64) -> tuple[Numbers, Numbers] | None:
    """Times and offsets of those rows of an index whose offsets are among these."""
    if not len(rows):
        return None
    offsets, moments = rows["offset"], rows["time"]
    chosen = offset_set(offsets) & among
    if len(chosen) < len(offsets):
        kept = np.isin(offsets, offset_numbers(chosen))
        offsets, moments = offsets[kept], moments[kept]
    return np.ascontiguousarray(moments), np.ascontiguousarray(offsets)


def arrival_of(
    entry: StoredBatch, *, with_keys: bool = False, fairness: str | None = None
) -> Arrival:
    """An entry as the machine sees it; its body is decoded only if it decides something.

    Of one that is hidden nothing passes.
    """
    if is_hidden(entry):
        return Arrival(
            base_offset=entry.base_offset,
            count=entry.count,
            time=entry.append_time,
            passed=np.zeros(entry.count, bool),
        )
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


_READERS: dict[str, Callable[[pa.Array], Any]] = {
    "priority": priorities,
    "deliver_at": times,
    "expires_at": times,
    "key": lambda values: values,
}
"""Columns that decide when and in what order a message is delivered."""
