"""Some messages of an entry as an entry of their own, for a delivery that is not of all of them."""

from __future__ import annotations

import pyarrow as pa
from pyroaring import BitMap64

from quiver.broker.delivery.offset_sets import offset_numbers
from quiver.model.batch import StoredBatch
from quiver.model.envelope import seal_batch, store_batch
from quiver.model.ids import Offset


def excerpt(entry: StoredBatch, offsets: BitMap64) -> StoredBatch:
    """The rows at these offsets, in order. Only the first keeps its place in the envelope."""
    places = offset_numbers(offsets) - entry.base_offset
    first, count = int(places[0]), len(places)
    rows = entry.record_batch()
    chosen = (
        rows.slice(first, count)
        if int(places[-1]) - first + 1 == count
        else rows.take(pa.array(places))
    )
    return store_batch(
        seal_batch(memoryview(chosen.serialize()), count, entry.columns),
        base_offset=Offset(entry.base_offset + first),
        epoch=entry.epoch,
        append_time=entry.append_time,
        durable_offset=entry.durable_offset,
    )
