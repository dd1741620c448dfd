"""Rows of a DataFrame as messages: the columns that a sink accepts, and their conversion.

The columns are checked on the driver before any task starts. In a task whole Arrow columns are converted
and split by topic and partition; only distinct keys are processed one by one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from quiver.errors import InvalidBatch, InvalidSetting
from quiver.model.schema import COLUMNS, TIMESTAMP

_TEXT = (StringType, BinaryType)
_WHOLE = (ByteType, ShortType, IntegerType, LongType)
_SINK_COLUMNS: dict[str, tuple[type[DataType], ...]] = {
    "value": _TEXT,
    "key": _TEXT,
    "headers": (ArrayType, MapType),
    "topic": (StringType,),
    "partition": _WHOLE,
    "priority": _WHOLE,
    "delay": (*_WHOLE, FloatType, DoubleType, DecimalType, DayTimeIntervalType),
    "event_time": (TimestampType,),
}
_HEADERS = next(field.type for field in COLUMNS if field.name == "headers")
_ANY = -1
Partitioner = Callable[[str, bytes], int]
"""The partition of a topic in which a key belongs."""


def check_columns(schema: StructType, has_topic: bool) -> None:
    """``InvalidSetting`` if rows of this schema cannot become messages."""
    kinds = {field.name: field.dataType for field in schema.fields}
    allowed = ", ".join(_SINK_COLUMNS)
    for name, kind in kinds.items():
        if name not in _SINK_COLUMNS:
            raise InvalidSetting(f"a message has no column {name!r}; the columns are {allowed}")
        if not isinstance(kind, _SINK_COLUMNS[name]):
            wanted = " or ".join(one.typeName() for one in _SINK_COLUMNS[name])
            raise InvalidSetting(f"column {name!r} must be {wanted}, not {kind.simpleString()}")
    if "value" not in kinds:
        raise InvalidSetting("the rows have no column 'value'")
    if "topic" not in kinds and not has_topic:
        raise InvalidSetting(
            "the target topic is missing: give the option topic, or a column 'topic'"
        )
    if isinstance(headers := kinds.get("headers"), ArrayType):
        names = getattr(headers.elementType, "names", [])
        if names != ["key", "value"]:
            raise InvalidSetting("column 'headers' must be array<struct<key, value>> or map")


def messages_of(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The columns of messages, without where they go."""
    given = {name: rows.column(place) for place, name in enumerate(rows.schema.names)}
    if given["value"].null_count:
        raise InvalidBatch("column 'value' has a null: a value may be empty, but not null")
    columns = {"payload": given["value"].cast(pa.binary())}
    if "key" in given:
        columns["key"] = given["key"].cast(pa.binary())
    if "headers" in given:
        columns["headers"] = _headers(given["headers"])
    if "event_time" in given:
        columns["event_time"] = given["event_time"].cast(TIMESTAMP)
    if "priority" in given:
        columns["priority"] = given["priority"].cast(pa.int8())
    if "delay" in given:
        columns["deliver_at"] = _deliver_at(given["delay"])
    return pa.RecordBatch.from_pydict(columns)


def destinations(
    rows: pa.RecordBatch, topic: str | None, partition_of: Partitioner
) -> Iterator[tuple[str, int | None, pa.Array | None]]:
    """Topic, partition and row numbers of the rows that go there.

    No partition means that any will do, and no numbers that it is all rows.
    """
    for name, numbers in _by_topic(rows, topic):
        some = rows if numbers is None else rows.take(numbers)
        places = _places(some, name, partition_of)
        if places is None:
            yield name, None, numbers
            continue
        order = np.argsort(places, kind="stable")
        found, starts = np.unique(places[order], return_index=True)
        for place, some_rows in zip(found, np.split(order, starts[1:]), strict=True):
            chosen = pa.array(some_rows) if len(found) > 1 else None
            if chosen is not None and numbers is not None:
                chosen = numbers.take(chosen)
            yield name, None if place == _ANY else int(place), numbers if chosen is None else chosen


def _by_topic(rows: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.Array | None]]:
    if topic is not None:  # as with Kafka, the option goes before the column
        yield topic, None
        return
    column = rows.column("topic")
    if column.null_count:
        raise InvalidBatch("column 'topic' has a null, and there is no option topic")
    for name in column.unique().to_pylist():
        chosen = pc.indices_nonzero(pc.equal(column, name))
        yield name, None if len(chosen) == len(rows) else chosen


def _places(
    rows: pa.RecordBatch, topic: str, partition_of: Partitioner
) -> np.ndarray[Any, Any] | None:
    """The partition of each row; ``None`` if any will do for all of them."""
    names = rows.schema.names
    places: np.ndarray[Any, Any] | None = None
    if "key" in names and rows.column("key").null_count < len(rows):
        encoded = rows.column("key").cast(pa.binary()).dictionary_encode()
        of_key = [partition_of(topic, key) for key in encoded.dictionary.to_pylist()]
        indices = encoded.indices.fill_null(len(of_key)).to_numpy(zero_copy_only=False)
        places = np.array([*of_key, _ANY])[indices]
    if "partition" in names and rows.column("partition").null_count < len(rows):
        given = rows.column("partition").cast(pa.int64())
        if pc.min(given).as_py() < 0:
            raise InvalidBatch("column 'partition' has a negative number")
        places = np.full(len(rows), _ANY) if places is None else places
        chosen = given.is_valid().to_numpy(zero_copy_only=False)
        places = np.where(chosen, given.fill_null(0).to_numpy(zero_copy_only=False), places)
    return places


def _headers(column: pa.Array) -> pa.Array:
    if pa.types.is_map(column.type):
        return column.cast(_HEADERS)
    # A list of pairs lies in memory as a map does, but for its type.
    flat = column.flatten()
    lengths = column.value_lengths().fill_null(0)
    zero = pa.array([0], pa.int32())
    offsets = pa.concat_arrays([zero, pc.cumulative_sum(lengths).cast(pa.int32())])
    names, values = flat.field("key").cast(pa.string()), flat.field("value")
    try:
        values = values.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise InvalidBatch(f"a header's value must be UTF-8 text: {error}") from error
    if names.null_count:
        raise InvalidBatch("a header has no name")
    whole = pa.MapArray.from_arrays(offsets, names, values)
    if not column.null_count:
        return whole
    return pc.if_else(column.is_valid(), whole, pa.scalar(None, whole.type))


def _deliver_at(delay: pa.Array) -> pa.Array:
    """When messages are due that are to wait so many seconds from now, or so long an interval."""
    now_us = time.time_ns() // 1000
    if pa.types.is_duration(delay.type):
        wait_us = delay.cast(pa.duration("us")).cast(pa.int64())
    else:
        wait_us = pc.multiply(delay.cast(pa.float64()), 1_000_000.0).cast(pa.int64(), safe=False)
    due = pc.add(wait_us, now_us)
    waits = pc.greater(wait_us, 0)
    return pc.if_else(waits, due, pa.scalar(None, pa.int64())).cast(TIMESTAMP)
