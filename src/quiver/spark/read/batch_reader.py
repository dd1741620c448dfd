"""Batch reads: a fixed range of every partition, cut down by the filters that Spark pushes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from quiver.spark.offsets import EARLIEST, Range, ranges_between, split
from quiver.spark.options import Bound, ReadOptions
from quiver.spark.read.filters import Pushed
from quiver.spark.read.offset_resolution import Positions
from quiver.spark.read.range_reader import RangePartition, read_range


class BatchReader(DataSourceReader):
    """Reads from the earliest to the latest message, unless the options say otherwise."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self._pushed = Pushed()

    def partitions(self) -> list[InputPartition]:
        options, positions = self.options, Positions(self.options)
        extents = positions.extents()
        start = positions.offsets(
            "startingOffsets", options.start or Bound(everywhere=EARLIEST), extents
        )
        end = positions.offsets("endingOffsets", options.end, extents)
        wanted = positions.kept(ranges_between(start, end), extents)
        ranges = [cut for one in wanted if len(cut := self._cut(one, positions))]
        return [RangePartition(one) for one in split(ranges, options.partitions_min)]

    def _cut(self, one: Range, positions: Positions) -> Range:
        """The part of the range in which rows may pass the filters."""
        start, end = self._pushed.offsets_within(one)
        since, until = self._pushed.since_us, self._pushed.until_us
        if start < end and since is not None:
            start = max(start, positions.offset_at(one.place, since))
        if start < end and until is not None:
            end = min(end, positions.offset_at(one.place, until))
        return Range(one.topic, one.partition, start, max(start, end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(partition, self.options)


class FilteringBatchReader(BatchReader):
    """The same where Spark pushes filters down (``spark.sql.python.filterPushdown.enabled``)."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        self._pushed = Pushed(filters)
        return filters  # Spark looks at the rows again: what is read is never less than what passes
