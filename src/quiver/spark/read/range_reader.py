"""The work of a task: reads one range of a partition as Arrow record batches.

The same range gives the same rows, on any executor and however often it is read. After a lost connection
or a restart of a node, the task retries for the time of the option ``timeout``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from quiver.errors import OffsetOutOfRange
from quiver.spark.columns import batches_of, spark_schema
from quiver.spark.offsets import Range
from quiver.spark.options import ReadOptions


class RangePartition(InputPartition):
    """A range, as Spark hands it to a task."""

    def __init__(self, range_: Range) -> None:
        super().__init__(range_)

    @property
    def range(self) -> Range:
        value: Range = self.value
        return value


def read_range(partition: InputPartition, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The messages of the range; nothing for the empty partition that Spark makes up itself."""
    if not isinstance(partition, RangePartition):
        return
    schema = to_arrow_schema(spark_schema(options.columns), timezone="UTC")
    wanted = partition.range
    start = wanted.start
    while start < wanted.end:
        try:
            for batch, next_offset in _batches(wanted, start, options, schema):
                start = next_offset
                yield batch
            return
        except OffsetOutOfRange as gone:
            first = gone.details.get("start_offset", wanted.end)
            if options.fail_on_data_loss or first <= start:
                raise OffsetOutOfRange(
                    f"offsets {start} to {wanted.end - 1} of partition {wanted.partition} of topic "
                    f"{wanted.topic!r} are needed and some are deleted: {gone.message}; "
                    "failOnDataLoss=false continues without them",
                    **gone.details,
                ) from gone
            start = first


def _batches(
    wanted: Range, start: int, options: ReadOptions, schema: pa.Schema
) -> Iterator[tuple[pa.RecordBatch, int]]:
    client = options.nodes.task_client()
    with client.read(
        wanted.topic,
        partition=wanted.partition,
        start=start,
        end=wanted.end,
        read_from=options.read_from,
    ) as reader:
        for chunk in reader.chunks():
            yield from batches_of(chunk, schema)
