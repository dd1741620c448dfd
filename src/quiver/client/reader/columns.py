"""Stored entries as record batches of one schema, whatever columns each entry carries.

Large entries become batches without copying. Runs of small ones are joined, so that a topic of lone
messages reads like any other. Offset, partition and time of storage come from the envelope.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache

import numpy as np
import pyarrow as pa

from quiver.client.reader.read_ahead import Chunk
from quiver.errors import InvalidRequest
from quiver.model.batch import StoredBatch
from quiver.model.schema import COLUMNS, TIMESTAMP

SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64()),
        pa.field("partition", pa.int32()),
        pa.field("timestamp", TIMESTAMP),
        *(field for field in COLUMNS if field.name != "sequence"),
    ]
)
"""What a reader yields: where and when a message is stored, and all that it has."""
_KINDS = {field.name: field.type for field in COLUMNS}
_JOINED_BYTES_MAX = 256 << 10
"""Entries smaller than this are joined with their neighbours: a batch costs more than the copy."""
_JOINED_TOTAL_MAX = 1 << 20
_NULLS_KEPT = 1 << 12
"""Columns that are null in so many rows are made once; shorter ones are parts of them."""


def schema_with(columns: Sequence[str] | None) -> pa.Schema:
    """The schema of a read of these columns, in this order; all of them if not told."""
    if columns is None:
        return SCHEMA
    if isinstance(columns, str) or not columns:
        raise InvalidRequest(f"columns must be a list of names, not {columns!r}")
    unknown = [name for name in columns if name not in SCHEMA.names]
    if unknown or len(set(columns)) < len(columns):
        what = f"there is no column {unknown[0]!r}" if unknown else "a column is named twice"
        raise InvalidRequest(f"{what}; the columns are {', '.join(SCHEMA.names)}")
    return pa.schema([SCHEMA.field(name) for name in columns])


def rows_in(entry: StoredBatch, chunk: Chunk) -> pa.RecordBatch:
    """The rows of the entry that are in the chunk's range."""
    rows = entry.record_batch()
    skip = max(0, chunk.begin - entry.base_offset)
    keep = min(entry.next_offset, chunk.end) - entry.base_offset - skip
    return rows if keep == entry.count else rows.slice(skip, keep)


def batches_of(chunk: Chunk, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The chunk as record batches of this schema."""
    names = schema.names
    for run in _runs(chunk):
        parts = [rows_in(entry, chunk) for entry in run]
        rows = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
        counts = [len(part) for part in parts]
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        columns["offset"] = offsets_of(run, counts, chunk)
        columns["partition"] = pa.repeat(pa.scalar(chunk.partition, pa.int32()), len(rows))
        columns["timestamp"] = times_of(run, counts)
        yield pa.RecordBatch.from_arrays(columns_of(names, columns, len(rows)), schema=schema)


def offsets_of(run: Sequence[StoredBatch], counts: Sequence[int], chunk: Chunk) -> pa.Array:
    """The offsets of the messages: so many of each entry, which need not follow on each other."""
    first, count = max(run[0].base_offset, chunk.begin), sum(counts)
    offsets = np.arange(first, first + count)
    if len(run) > 1 and run[-1].base_offset + counts[-1] != first + count:
        bases = np.array([first, *(entry.base_offset for entry in run[1:])])
        ends = np.cumsum(counts)
        offsets += np.repeat(bases - (first + ends - counts), counts)
    return pa.array(offsets)


def columns_of(names: Sequence[str], columns: Mapping[str, pa.Array], count: int) -> list[pa.Array]:
    """The columns of these names, in order; those that are not there are null."""
    return [columns[name] if name in columns else _nulls(name, count) for name in names]


def times_of(run: Sequence[StoredBatch], counts: Sequence[int]) -> pa.Array:
    """When the messages were stored: so many of each entry."""
    if len(run) == 1:
        return pa.array(np.full(counts[0], run[0].append_time)).view(TIMESTAMP)
    return pa.array(np.repeat([entry.append_time for entry in run], counts)).view(TIMESTAMP)


def _runs(chunk: Chunk) -> Iterator[list[StoredBatch]]:
    """Entries that make one batch together: a large one alone, small ones of the same columns."""
    run: list[StoredBatch] = []
    total = 0
    for entry in chunk.entries:
        if entry.base_offset >= chunk.end:
            break
        size = entry.size()
        joins = size < _JOINED_BYTES_MAX and total + size <= _JOINED_TOTAL_MAX
        if run and (not joins or entry.columns != run[0].columns):
            yield run
            run, total = [], 0
        run.append(entry)
        total += size
        if size >= _JOINED_BYTES_MAX:
            yield run
            run, total = [], 0
    if run:
        yield run


@cache
def _many_nulls(name: str) -> pa.Array:
    return pa.nulls(_NULLS_KEPT, _KINDS[name])


@lru_cache(1024)
def _some_nulls(name: str, count: int) -> pa.Array:
    return _many_nulls(name).slice(0, count)


def _nulls(name: str, count: int) -> pa.Array:
    return pa.nulls(count, _KINDS[name]) if count > _NULLS_KEPT else _some_nulls(name, count)
