"""The columns that Spark sees, and the conversion of stored entries to that schema.

The first seven are those of the Kafka connector. Entries of a chunk are joined, whatever columns they
have: no row becomes a Python object, and large entries are not copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from quiver.client.reader.columns import offsets_of, rows_in
from quiver.client.reader.read_ahead import Chunk
from quiver.errors import InvalidSetting
from quiver.model.batch import StoredBatch

HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "headers": HEADERS,
    "event_time": TimestampType(),
    "priority": ByteType(),
    "deliver_at": TimestampType(),
    "expires_at": TimestampType(),
    "dedup_id": StringType(),
    "origin_topic": StringType(),
    "origin_partition": IntegerType(),
    "origin_offset": LongType(),
    "origin_subscription": StringType(),
    "origin_time": TimestampType(),
    "deliveries": IntegerType(),
    "last_error": StringType(),
}
DEFAULT_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
_STORED_AS = {"value": "payload"}
_JOINED_BYTES_MAX = 8 << 20
_REPEATED = 1 << 14


def column_names(text: str | None) -> tuple[str, ...]:
    """The columns of the option ``columns``, in the order given."""
    if text is None:
        return DEFAULT_COLUMNS
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    unknown = [name for name in names if name not in TYPES]
    if unknown or not names or len(set(names)) < len(names):
        what = f"there is no column {unknown[0]!r}" if unknown else "name one or more, each once"
        raise InvalidSetting(f"columns: {what}; the columns are {', '.join(TYPES)}")
    return names


def spark_schema(names: tuple[str, ...]) -> StructType:
    return StructType([StructField(name, TYPES[name]) for name in names])


def batches_of(chunk: Chunk, schema: pa.Schema) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The messages of a chunk as record batches of Spark's schema, and the offset after each."""
    for run in _runs(chunk):
        rows = _Rows(chunk, run)
        columns = [rows.column(field) for field in schema]
        next_offset = min(int(run[-1].next_offset), chunk.end)
        yield pa.RecordBatch.from_arrays(columns, schema=schema), next_offset


class _Rows:
    """The messages of some entries, and what the envelope says of them, as columns."""

    def __init__(self, chunk: Chunk, run: list[StoredBatch]) -> None:
        self._chunk = chunk
        self._run = run
        self._parts = [rows_in(entry, chunk) for entry in run]
        self._lengths = [len(part) for part in self._parts]
        self._count = sum(self._lengths)

    def column(self, field: pa.Field) -> pa.Array:
        match field.name:
            case "topic":
                return _repeated(self._chunk.topic, "string", self._count)
            case "partition":
                return _repeated(self._chunk.partition, "int32", self._count)
            case "offset":
                return offsets_of(self._run, self._lengths, self._chunk)
            case "timestamp":
                times = np.array([entry.append_time for entry in self._run], np.int64)
                return pa.array(np.repeat(times, self._lengths)).view(field.type)
            case name:
                return self._stored(_STORED_AS.get(name, name), field.type)

    def _stored(self, name: str, kind: pa.DataType) -> pa.Array:
        """A column of the entries, with nulls for those that do not carry it."""
        found = [part.column(name) if name in part.schema.names else None for part in self._parts]
        stored = next((array.type for array in found if array is not None), None)
        if stored is None:
            return _nulls(kind, self._count)
        arrays = [
            pa.nulls(length, stored) if array is None else array
            for array, length in zip(found, self._lengths, strict=True)
        ]
        whole = arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
        return whole if whole.type == kind else whole.cast(kind)


def _runs(chunk: Chunk) -> Iterator[list[StoredBatch]]:
    """Entries that make one batch together."""
    run: list[StoredBatch] = []
    total = 0
    for entry in chunk.entries:
        if entry.base_offset >= chunk.end:
            break
        if run and total + entry.size() > _JOINED_BYTES_MAX:
            yield run
            run, total = [], 0
        run.append(entry)
        total += entry.size()
    if run:
        yield run


def _repeated(value: str | int, kind: str, count: int) -> pa.Array:
    if count > _REPEATED:
        return pa.repeat(pa.scalar(value, pa.type_for_alias(kind)), count)
    return _many(value, kind).slice(0, count)


@cache
def _many(value: str | int, kind: str) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.type_for_alias(kind)), _REPEATED)


def _nulls(kind: pa.DataType, count: int) -> pa.Array:
    return pa.nulls(count, kind) if count > _REPEATED else _all_null(kind).slice(0, count)


@cache
def _all_null(kind: pa.DataType) -> pa.Array:
    return pa.nulls(_REPEATED, kind)
