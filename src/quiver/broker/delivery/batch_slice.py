"""Slices of an entry: some of its messages as an entry of their own."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from quiver.broker.delivery.machine.offset_sets import offset_numbers
from quiver.model.batch import StoredBatch
from quiver.model.envelope import seal_batch, store_batch
from quiver.model.ids import Offset
from quiver.model.schema import TIMESTAMP


def batch_slice(
    entry: StoredBatch, offsets: BitMap64, rows: pa.RecordBatch | None = None
) -> StoredBatch:
    """The rows at these offsets, in order. Only the first keeps its place in the envelope.

    ``rows`` are those of the entry, if somebody has decoded it already.
    """
    first, count = offsets.min() - entry.base_offset, len(offsets)
    if rows is None:
        rows = entry.record_batch()
    chosen = (
        rows.slice(first, count)
        if offsets.max() - offsets.min() + 1 == count
        else rows.take(pa.array(offset_numbers(offsets) - entry.base_offset))
    )
    return store_batch(
        seal_batch(memoryview(chosen.serialize()), count, entry.columns),
        base_offset=Offset(entry.base_offset + first),
        epoch=entry.epoch,
        append_time=entry.append_time,
        durable_offset=entry.durable_offset,
    )


def extras_of(entry: StoredBatch) -> dict[str, pa.Array]:
    """What the envelope knows of each message, as columns that a filter may read."""
    count = entry.count
    return {
        "offset": pa.array(np.arange(entry.base_offset, entry.next_offset)),
        "timestamp": pa.repeat(pa.scalar(entry.append_time, TIMESTAMP), count),
    }
