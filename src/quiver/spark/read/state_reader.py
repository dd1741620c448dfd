"""The delivery state of a subscription as a table: one row for each pending message.

The state is taken on the driver, at one moment and one position of each partition; tasks add when
each message was stored, unless that is not asked for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from quiver.client.consumer.peeked import PendingMessages
from quiver.client.reader.read_ahead import Chunk
from quiver.errors import InvalidSetting
from quiver.spark.options import StateOptions

_TYPES: dict[str, DataType] = {
    "subscription": StringType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "state": StringType(),
    "attempts": IntegerType(),
    "timestamp": TimestampType(),
    "age_seconds": DoubleType(),
    "position": LongType(),
}
_STORED = {"timestamp", "age_seconds"}
_OFFSETS_PER_TASK = 1_000_000


def state_schema(columns: tuple[str, ...] | None) -> StructType:
    """The columns asked for; all of them if that is not said."""
    unknown = [name for name in columns or () if name not in _TYPES]
    if unknown:
        raise InvalidSetting(
            f"the state has no column {unknown[0]!r}; the columns are {', '.join(_TYPES)}"
        )
    return StructType([StructField(name, _TYPES[name]) for name in columns or _TYPES])


class _Part(InputPartition):
    """Pending messages of one partition in one state."""

    def __init__(
        self, topic: str, partition: int, state: str, position: int, taken_us: int
    ) -> None:
        super().__init__((topic, partition, state))
        self.topic, self.partition, self.state = topic, partition, state
        self.position, self.taken_us = position, taken_us
        self.offsets = b""
        self.attempts: dict[int, bytes] = {}


class StateReader(DataSourceReader):
    def __init__(self, options: StateOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        options = self._options
        taken_us = time.time_ns() // 1000
        pending = options.nodes.client().pending(options.subscription)
        return [part for one in pending for part in _parts(one, taken_us)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, _Part):
            return
        schema = to_arrow_schema(state_schema(self._options.columns), timezone="UTC")
        offsets = BitMap64.deserialize(partition.offsets).to_array()
        numbers = np.array(offsets, np.int64)
        attempts = np.zeros(len(numbers), np.int32)
        for count, some in partition.attempts.items():
            delivered = np.array(BitMap64.deserialize(some).to_array(), np.int64)
            attempts[np.searchsorted(numbers, delivered)] = count
        columns = {
            "subscription": pa.repeat(self._options.subscription, len(numbers)),
            "topic": pa.repeat(partition.topic, len(numbers)),
            "partition": pa.repeat(pa.scalar(partition.partition, pa.int32()), len(numbers)),
            "offset": pa.array(numbers),
            "state": pa.repeat(partition.state, len(numbers)),
            "attempts": pa.array(attempts),
            "position": pa.repeat(pa.scalar(partition.position, pa.int64()), len(numbers)),
        }
        if _STORED & set(schema.names):
            times = self._times(partition, numbers)
            columns["timestamp"] = pa.array(times).view(pa.timestamp("us", tz="UTC"))
            columns["age_seconds"] = pa.array((partition.taken_us - times) / 1e6)
        yield pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)

    def _times(self, part: _Part, offsets: np.ndarray) -> np.ndarray:
        """When each message was stored, by the envelopes of the entries that hold them."""
        options = self._options
        times = np.zeros(len(offsets), np.int64)
        with options.nodes.task_client().read(
            part.topic, partition=part.partition, start=int(offsets[0]), end=int(offsets[-1]) + 1
        ) as reader:
            for chunk in reader.chunks():
                _note_times(chunk, offsets, times)
        return times


def _note_times(chunk: Chunk, offsets: np.ndarray, times: np.ndarray) -> None:
    for entry in chunk.entries:
        first, end = np.searchsorted(offsets, [int(entry.base_offset), int(entry.next_offset)])
        times[first:end] = entry.append_time


def _parts(one: PendingMessages, taken_us: int) -> Iterator[InputPartition]:
    """Tasks of bounded size, each with the attempts of its own messages."""
    for state, offsets in one.states.items():
        for first in range(0, len(offsets), _OFFSETS_PER_TASK):
            some = offsets[first : first + _OFFSETS_PER_TASK]
            part = _Part(one.topic, one.partition, state, one.next_offset, taken_us)
            part.offsets = some.serialize()
            part.attempts = {
                count: (delivered & some).serialize() for count, delivered in one.deliveries.items()
            }
            yield part
