"""Resolves where a read starts and ends, by asking the nodes.

It runs on the driver. Wrong options are found here, before any task starts.
"""

from __future__ import annotations

import re

from quiver.client import Client
from quiver.errors import InvalidSetting, OffsetOutOfRange, TopicNotFound
from quiver.model.message import datetime_of
from quiver.protocol import TopicInfo
from quiver.spark.offsets import LATEST, Extent, Offsets, Place, Range, resolved
from quiver.spark.options import Bound, ReadOptions

Extents = dict[Place, Extent]


class Positions:
    """What the nodes say, for one set of options."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    @property
    def _client(self) -> Client:
        return self._options.nodes.client()

    def extents(self) -> Extents:
        """Every partition chosen, with what it holds now."""
        found = {
            (info.name, partition.index): Extent(
                partition.start_offset or 0, partition.next_offset or 0, partition.bytes or 0
            )
            for info in self._topics()
            for partition in info.partitions
            if self._options.topics.has(info.name, partition.index)
        }
        missing = set(self._options.topics.partitions or ()) - set(found)
        if missing:
            topic, partition = min(missing)
            raise InvalidSetting(f"assign: topic {topic!r} has no partition {partition}")
        return found

    def _topics(self) -> list[TopicInfo]:
        choice, names = self._options.topics, self._options.topics.names
        if choice.pattern is not None:
            pattern = re.compile(choice.pattern)
            known = (info.name for info in self._client.list_topics())
            names = tuple(name for name in known if pattern.fullmatch(name))
        return [self._client.describe_topic(name) for name in names]

    def offsets(self, setting: str, bound: Bound, extents: Extents) -> Offsets:
        """The offsets that a bound means now; each is within what its partition holds."""
        named = {place for place, _ in bound.offsets or ()}
        strange = named - set(extents)
        if strange:
            topic, partition = min(strange)
            raise InvalidSetting(
                f"{setting} names partition {partition} of topic {topic!r}, which this query does not read"
            )
        unnamed = set() if bound.offsets is None else set(extents) - named
        if unnamed:
            topic, partition = min(unnamed)
            raise InvalidSetting(
                f"{setting} names no offset for partition {partition} of topic {topic!r}: "
                "give one for every partition"
            )
        return {place: self._offset(place, bound, extent) for place, extent in extents.items()}

    def _offset(self, place: Place, bound: Bound, extent: Extent) -> int:
        if bound.time_us is not None:
            return self.offset_at(place, bound.time_us)
        wanted = bound.of(place)
        assert wanted is not None, "every partition has its offset"
        return resolved(wanted, extent)

    def offset_at(self, place: Place, time_us: int) -> int:
        """The first offset that was stored at or after a moment; the next one if there is none."""
        topic, partition = place
        with self._client.read(topic, partition=partition, start=datetime_of(time_us)) as reader:
            return reader.bounds()[partition][0]

    def kept(self, ranges: list[Range], extents: Extents) -> list[Range]:
        """The ranges, as far as they are still there; what is not is data loss."""
        here = []
        for one in ranges:
            extent = extents.get(one.place)
            if extent is None:
                self._lost(one, None)
                continue
            start, end = max(one.start, extent.start), min(one.end, extent.next)
            if (start, end) != (one.start, one.end):
                self._lost(one, extent)
            if start < end:
                here.append(Range(one.topic, one.partition, start, end))
        return here

    def _lost(self, wanted: Range, extent: Extent | None) -> None:
        if not self._options.fail_on_data_loss:
            return
        where = f"partition {wanted.partition} of topic {wanted.topic!r}"
        if extent is None:
            raise TopicNotFound(
                f"{where} is deleted, and with it offsets {wanted.start} to {wanted.end - 1}; "
                "failOnDataLoss=false continues without them"
            )
        raise OffsetOutOfRange(
            f"{where} holds offsets {extent.start} to {extent.next - 1}, and {wanted.start} to "
            f"{wanted.end - 1} are needed; failOnDataLoss=false continues without the missing ones",
            start_offset=extent.start,
            next_offset=extent.next,
        )


def start_offsets(positions: Positions, options: ReadOptions, extents: Extents) -> Offsets:
    """Where a stream begins that has no checkpoint: at the latest offsets, unless told."""
    bound = options.start or Bound(everywhere=LATEST)
    return positions.offsets("startingOffsets", bound, extents)


def latest_offsets(extents: Extents) -> Offsets:
    return {place: extent.next for place, extent in extents.items()}
