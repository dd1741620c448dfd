"""Which columns Spark sees, and how stored entries become record batches of exactly that schema.

The first seven are what jobs for the Kafka connector expect. Entries of a chunk are joined, whatever
columns each of them carries: no row becomes a Python object, and of a large entry nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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

from quiver.client.read_ahead import Chunk
from quiver.client.read_columns import rows_in
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
        what = f"no column {unknown[0]!r}" if unknown else "each column once, and at least one"
        raise InvalidSetting(f"columns: there is {what}; the columns are {', '.join(TYPES)}")
    return names


def spark_schema(names: tuple[str, ...]) -> StructType:
    return StructType([StructField(name, TYPES[name]) for name in names])


def batches_of(chunk: Chunk, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The messages of a chunk as record batches of Spark's schema."""
    for run in _runs(chunk):
        parts = [rows_in(entry, chunk) for entry in run]
        lengths = [len(part) for part in parts]
        first = max(int(run[0].base_offset), chunk.begin)
        count = sum(lengths)
        derived: dict[str, Callable[[], pa.Array]] = {
            "topic": lambda: _repeated(chunk.topic, "string", count),
            "partition": lambda: _repeated(chunk.partition, "int32", count),
            "offset": lambda: pa.array(np.arange(first, first + count)),
            "timestamp": lambda: _times(run, lengths),
        }
        arrays = [
            derived[field.name]() if field.name in derived else _stored(field, parts, count)
            for field in schema
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


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


def _stored(field: pa.Field, parts: list[pa.RecordBatch], count: int) -> pa.Array:
    name = _STORED_AS.get(field.name, field.name)
    present = [name in part.schema.names for part in parts]
    if not any(present):
        return _nulls(field.type, count) if count <= _REPEATED else pa.nulls(count, field.type)
    arrays = [
        part.column(name) if here else None for part, here in zip(parts, present, strict=True)
    ]
    kind = next(array.type for array in arrays if array is not None)
    filled = [
        pa.nulls(len(part), kind) if array is None else array
        for part, array in zip(parts, arrays, strict=True)
    ]
    whole = filled[0] if len(filled) == 1 else pa.concat_arrays(filled)
    return whole if whole.type == field.type else whole.cast(field.type)


def _times(run: list[StoredBatch], lengths: list[int]) -> pa.Array:
    times = np.repeat(np.array([entry.append_time for entry in run], np.int64), lengths)
    return pa.array(times).view(pa.timestamp("us", tz="UTC"))


def _repeated(value: str | int, kind: str, count: int) -> pa.Array:
    if count > _REPEATED:
        return pa.repeat(pa.scalar(value, pa.type_for_alias(kind)), count)
    return _many(value, kind).slice(0, count)


@cache
def _many(value: str | int, kind: str) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.type_for_alias(kind)), _REPEATED)


def _nulls(kind: pa.DataType, count: int) -> pa.Array:
    return _all_null(kind).slice(0, count)


@cache
def _all_null(kind: pa.DataType) -> pa.Array:
    return pa.nulls(_REPEATED, kind)
