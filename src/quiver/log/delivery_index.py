"""What decides when and to whom the messages of one segment are delivered, without their bodies.

Priorities other than the default, delays, expiries, and the subscription that a message is for. It is a
cache of the segment and never the truth: its file counts only if the segment's offset index names its
fingerprint, and what is missing or damaged is built again from the entries. A segment without such
messages has no file.
"""

from __future__ import annotations

from array import array
from typing import TypeVar

import msgspec
import numpy as np
from crc32c import crc32c
from pyroaring import BitMap64

from quiver.model.batch import StoredBatch
from quiver.model.delivery_columns import (
    NEVER,
    TIMED_OR_RANKED,
    Numbers,
    is_targeted,
    priorities,
    rows_by_priority,
    rows_by_target,
    times,
)
from quiver.model.ids import Offset

Label = TypeVar("Label", int, str)

_MAGIC = b"QVRD\x01\x00\x00\x00"
"""With the version of the format."""
_TIMED = np.dtype([("offset", "<i8"), ("time", "<i8")])
_TIMED_BYTES = _TIMED.itemsize
_RANKED_BYTES = 2
"""About what a priority takes of a set of offsets when priorities are random."""


def decides_delivery(columns: int) -> bool:
    """Whether a batch with these columns has anything to index."""
    return bool(columns & TIMED_OR_RANKED) or is_targeted(columns)


def fingerprint(data: bytes) -> int:
    """Length and checksum of an index file in one number; 0 for no file."""
    return len(data) << 32 | crc32c(data)


class TimedOffsets:
    """Offsets in ascending order, each with a time. ``slice`` costs nothing, ``add`` copies a batch."""

    __slots__ = ("_rows", "count")

    def __init__(self, rows: Numbers | None = None) -> None:
        self._rows = np.empty(0, _TIMED) if rows is None else rows
        self.count = len(self._rows)

    @property
    def rows(self) -> Numbers:
        return self._rows[: self.count]

    def add(self, offsets: Numbers, moments: Numbers) -> None:
        end = self.count + len(offsets)
        if end > len(self._rows):
            grown = np.empty(max(64, 2 * end), _TIMED)
            grown[: self.count] = self.rows
            self._rows = grown
        added = self._rows[self.count : end]
        added["offset"], added["time"] = offsets, moments
        self.count = end

    def between(self, start: int, stop: int) -> Numbers:
        """Those from ``start`` up to, but without, ``stop``: fields ``offset`` and ``time``."""
        first, end = np.searchsorted(self.rows["offset"], [start, stop])
        return self.rows[first:end]


class DeliverySpan(msgspec.Struct, frozen=True, kw_only=True):
    """What decides the delivery of the messages from ``base_offset`` up to ``next_offset``."""

    base_offset: Offset
    next_offset: Offset
    published_bases: Numbers
    published_times: Numbers
    """The first offsets of some batches, and when these were stored. The first may be before the span."""
    priorities: dict[int, BitMap64]
    """The offsets of each priority other than the default."""
    targets: dict[str, BitMap64]
    """The offsets that are for one subscription, by its name."""
    delays: Numbers
    expiries: Numbers
    """Fields ``offset`` and ``time``, in order of the offsets."""
    hidden: BitMap64 | None = None
    """Offsets that are never delivered, in the span or beyond: whoever knows of them adds them."""
    is_indexed: bool = True
    """Whether an index said so; else entries had to be read."""

    def before(self, end: Offset) -> DeliverySpan:
        """The same without anything at or after ``end``."""
        if end >= self.next_offset:
            return self
        return msgspec.structs.replace(
            self,
            next_offset=end,
            priorities=_clipped(self.priorities, self.base_offset, end),
            targets=_clipped(self.targets, self.base_offset, end),
            delays=TimedOffsets(self.delays).between(self.base_offset, end),
            expiries=TimedOffsets(self.expiries).between(self.base_offset, end),
        )


class DeliveryIndex:
    """Entries come in order. It holds nothing for batches that have none of these columns."""

    __slots__ = ("delays", "expiries", "priorities", "size", "targets")

    def __init__(self) -> None:
        self.priorities: dict[int, BitMap64] = {}
        self.targets: dict[str, BitMap64] = {}
        self.delays = TimedOffsets()
        self.expiries = TimedOffsets()
        self.size = 0
        """About how many bytes it takes, in memory and on disk."""

    def add(self, entry: StoredBatch) -> None:
        """Take in the next entry, one with columns that decide its delivery."""
        rows, base = entry.record_batch(), entry.base_offset
        for name in rows.schema.names:
            if name == "priority":
                for priority, found in rows_by_priority(priorities(rows.column(name))):
                    _add(self.priorities.setdefault(priority, BitMap64()), found + base)
                    self.size += len(found) * _RANKED_BYTES
            elif name in ("deliver_at", "expires_at"):
                moments = times(rows.column(name))
                found = np.flatnonzero(moments != NEVER)
                timed = self.delays if name == "deliver_at" else self.expiries
                timed.add(found + base, moments[found])
                self.size += len(found) * _TIMED_BYTES
            elif name == "origin_subscription" and is_targeted(entry.columns):
                for target, found in rows_by_target(rows.column(name)):
                    _add(self.targets.setdefault(target, BitMap64()), found + base)
                    self.size += len(found) * _RANKED_BYTES

    def _measure(self) -> None:
        timed = self.delays.count + self.expiries.count
        ranked = sum(map(len, self.priorities.values())) + sum(map(len, self.targets.values()))
        self.size = timed * _TIMED_BYTES + ranked * _RANKED_BYTES

    def before(self, end: Offset) -> DeliveryIndex:
        """The same without anything at or after ``end``."""
        kept = DeliveryIndex()
        kept.priorities = _clipped(self.priorities, 0, end)
        kept.targets = _clipped(self.targets, 0, end)
        kept.delays = TimedOffsets(self.delays.between(0, end).copy())
        kept.expiries = TimedOffsets(self.expiries.between(0, end).copy())
        kept._measure()
        return kept

    def span(
        self, start: Offset, stop: Offset, published_bases: Numbers, published_times: Numbers
    ) -> DeliverySpan:
        """What it says of the messages from ``start`` up to, but without, ``stop``."""
        return DeliverySpan(
            base_offset=start,
            next_offset=stop,
            published_bases=published_bases,
            published_times=published_times,
            priorities=_clipped(self.priorities, start, stop),
            targets=_clipped(self.targets, start, stop),
            delays=self.delays.between(start, stop),
            expiries=self.expiries.between(start, stop),
        )

    def encode(self) -> bytes:
        """The content of its file; nothing if it is empty."""
        if not self.size:
            return b""
        return _MAGIC + _encode(
            _Stored(
                priorities=_packed(self.priorities),
                targets=_packed(self.targets),
                delays=self.delays.rows.tobytes(),
                expiries=self.expiries.rows.tobytes(),
            )
        )

    @classmethod
    def decode(cls, data: bytes, expected: int) -> DeliveryIndex | None:
        """The index in a file with this fingerprint; ``None`` if it is another or newer one."""
        if fingerprint(data) != expected:
            return None
        index = cls()
        if not data:
            return index
        if not data.startswith(_MAGIC):
            return None
        stored = _decoder.decode(memoryview(data)[len(_MAGIC) :])
        index.priorities = _unpacked(stored.priorities)
        index.targets = _unpacked(stored.targets)
        index.delays = TimedOffsets(np.frombuffer(stored.delays, _TIMED))
        index.expiries = TimedOffsets(np.frombuffer(stored.expiries, _TIMED))
        index._measure()
        return index


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    priorities: dict[int, bytes]
    targets: dict[str, bytes]
    delays: bytes
    expiries: bytes


_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[_Stored] = msgspec.msgpack.Decoder(_Stored)


def _add(offsets: BitMap64, numbers: Numbers) -> None:
    first, last = int(numbers[0]), int(numbers[-1])
    if last - first + 1 == len(numbers):
        offsets.add_range(first, last + 1)
        return
    added: array[int] = array("Q")
    added.frombytes(numbers.astype("Q", copy=False).tobytes())
    offsets.update(added)


def _clipped(sets: dict[Label, BitMap64], start: int, stop: int) -> dict[Label, BitMap64]:
    window = BitMap64()
    window.add_range(start, max(start, stop))
    clipped = {label: offsets & window for label, offsets in sets.items()}
    return {label: offsets for label, offsets in clipped.items() if offsets}


def _packed(sets: dict[Label, BitMap64]) -> dict[Label, bytes]:
    for offsets in sets.values():
        offsets.run_optimize()
    return {label: offsets.serialize() for label, offsets in sets.items()}


def _unpacked(sets: dict[Label, bytes]) -> dict[Label, BitMap64]:
    return {label: BitMap64.deserialize(data) for label, data in sets.items()}
