"""Stored entries as record batches of one schema, whatever columns each entry carries.

Large entries become batches without copying. Runs of small ones are joined, so that a topic of lone
messages reads like any other. Offset, partition and time of storage come from the envelope.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain, repeat

import pyarrow as pa
import pyarrow.compute as pc

from quiver.client.read_ahead import Chunk
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
_JOINED_BYTES_MAX = 64 << 10
"""Entries smaller than this are joined with their neighbours."""
_JOINED_TOTAL_MAX = 1 << 20


def schema_with(columns: Sequence[str] | None) -> pa.Schema:
    """The schema of a read of these columns, in this order; all of them if not told."""
    if columns is None:
        return SCHEMA
    if isinstance(columns, str) or not columns:
        raise InvalidRequest(f"columns are a list of names, not {columns!r}")
    unknown = [name for name in columns if name not in SCHEMA.names]
    if unknown or len(set(columns)) < len(columns):
        what = f"no column {unknown[0]!r}" if unknown else "each column once"
        raise InvalidRequest(f"there is {what}; the columns are {', '.join(SCHEMA.names)}")
    return pa.schema([SCHEMA.field(name) for name in columns])


def rows_in(entry: StoredBatch, chunk: Chunk) -> pa.RecordBatch:
    """The rows of the entry that are in the chunk's range."""
    rows = entry.record_batch()
    skip = max(0, chunk.begin - entry.base_offset)
    keep = min(entry.next_offset, chunk.end) - entry.base_offset - skip
    return rows if keep == entry.count else rows.slice(skip, keep)


def batches_of(chunk: Chunk, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The chunk as record batches of this schema."""
    for run in _runs(chunk):
        parts = [rows_in(entry, chunk) for entry in run]
        rows = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
        first = max(run[0].base_offset, chunk.begin)
        derived = {
            "offset": partial(_counted, first, len(rows)),
            "partition": partial(pa.repeat, pa.scalar(chunk.partition, pa.int32()), len(rows)),
            "timestamp": partial(_times, run, parts),
        }
        yield pa.RecordBatch.from_arrays(
            [_column(field, rows, derived) for field in schema], schema=schema
        )


def _column(
    field: pa.Field, rows: pa.RecordBatch, derived: Mapping[str, Callable[[], pa.Array]]
) -> pa.Array:
    if field.name in derived:
        return derived[field.name]()
    if field.name in rows.schema.names:
        return rows.column(field.name)
    return pa.nulls(len(rows), field.type)


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


def _times(run: list[StoredBatch], parts: list[pa.RecordBatch]) -> pa.Array:
    if len(run) == 1:
        return pa.repeat(pa.scalar(run[0].append_time, TIMESTAMP), len(parts[0]))
    times = (repeat(entry.append_time, len(part)) for entry, part in zip(run, parts, strict=True))
    return pa.array(list(chain.from_iterable(times)), TIMESTAMP)


@cache
def _counting() -> pa.Array:
    return pa.array(range(1 << 14), pa.int64())


def _counted(first: int, count: int) -> pa.Array:
    """The numbers from ``first`` on, as many as ``count``."""
    if count > len(_counting()):
        return pa.array(range(first, first + count), pa.int64())
    return pc.add(_counting().slice(0, count), pa.scalar(first, pa.int64()))
