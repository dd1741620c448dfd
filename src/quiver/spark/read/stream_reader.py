"""Stream reads: the end of the next micro-batch, and its ranges.

It runs on the driver, in one process for each query. Offsets never go back: a topic that was truncated or
created again is data loss, and ``failOnDataLoss`` decides what happens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from quiver.errors import OffsetOutOfRange
from quiver.spark.offsets import (
    Offsets,
    limited,
    offsets_as_json,
    offsets_from_json,
    ranges_between,
    split,
)
from quiver.spark.options import ReadOptions
from quiver.spark.read.offset_resolution import Extents, Positions, latest_offsets, start_offsets
from quiver.spark.read.progress import Progress
from quiver.spark.read.range_reader import RangePartition, read_range

_CHECKPOINT = "the checkpoint's offsets"


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self._positions = Positions(options)
        self._progress = Progress(options)
        self._available: Offsets | None = None
        self._latest: Offsets | None = None

    # ------------------------------------------------------------------ where a batch ends

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        self._progress.check()
        extents = self._positions.extents()
        return offsets_as_json(start_offsets(self._positions, self.options, extents))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self.options.offsets_per_trigger_max is not None:
            return ReadMaxRows(self.options.offsets_per_trigger_max)
        if self.options.bytes_per_trigger_max is not None:
            return ReadMaxBytes(self.options.bytes_per_trigger_max)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._available = latest_offsets(self._positions.extents())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        began = offsets_from_json(_CHECKPOINT, start)
        self._progress.reached(began)  # the batch before is done, or there would be no next one
        extents = self._positions.extents()
        self._latest = latest_offsets(extents)
        latest = self._forward(began, self._latest if self._available is None else self._available)
        for place, extent in extents.items():
            if place in latest:  # a partition seen for the first time begins where it begins
                began.setdefault(place, extent.start)
        return offsets_as_json(self._limited(began, latest, extents, limit))

    def _forward(self, began: Offsets, latest: Offsets) -> Offsets:
        """Ends for every partition known; one before where the batch begins is data loss."""
        for place, offset in began.items():
            if latest.get(place, offset) < offset and self.options.fail_on_data_loss:
                topic, partition = place
                raise OffsetOutOfRange(
                    f"partition {partition} of topic {topic!r} ends at offset {latest[place]}, "
                    f"before {offset}, which was already read: the topic was created again or "
                    "lost messages; failOnDataLoss=false continues from its end"
                )
        return {**began, **latest}

    def _limited(
        self, began: Offsets, latest: Offsets, extents: Extents, limit: ReadLimit
    ) -> Offsets:
        if isinstance(limit, ReadAllAvailable):
            return latest
        rows = [self.options.offsets_per_trigger_max, getattr(limit, "max_rows", None)]
        size = getattr(limit, "max_bytes", None) or self.options.bytes_per_trigger_max
        if size is not None:
            rows.append(_messages_in(size, began, latest, extents))
        known = [count for count in rows if count is not None]
        return limited(began, latest, min(known)) if known else latest

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """What Spark shows as the source's latest offset, so that its lag can be seen."""
        return None if self._latest is None else offsets_as_json(self._latest)

    # ------------------------------------------------------------------ what a batch consists of

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        began = offsets_from_json(_CHECKPOINT, start)
        until = offsets_from_json(_CHECKPOINT, end)
        extents = self._positions.extents()
        for place, extent in extents.items():
            if place in until:
                began.setdefault(place, extent.start)
        ranges = self._positions.kept(ranges_between(began, until), extents)
        return [RangePartition(one) for one in split(ranges, self.options.partitions_min)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(partition, self.options)

    def commit(self, end: dict[str, Any]) -> None:
        self._progress.reached(offsets_from_json(_CHECKPOINT, end))

    def stop(self) -> None:
        """Nothing is held that the end of the process would not free."""

    def __getstate__(self) -> dict[str, Any]:
        # Tasks get a copy, which reads and does nothing else.
        return {"options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["options"])  # type: ignore[misc]


def _messages_in(size: int, began: Offsets, latest: Offsets, extents: Extents) -> int:
    """About how many of the messages that wait make up so many bytes."""
    count = bytes_ = 0.0
    for place, end in latest.items():
        waiting = max(0, end - began.get(place, 0))
        count += waiting
        if place in extents:
            bytes_ += waiting * extents[place].bytes_per_message
    return max(1, int(size * count / bytes_)) if bytes_ else max(1, int(count))
