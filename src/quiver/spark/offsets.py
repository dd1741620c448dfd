"""Offsets of topics and partitions: ranges, splits and limits.

Everything here is pure. Spark stores offsets as JSON, ``{"orders": {"0": 17, "1": 5}}``, in the form of
the Kafka connector; -2 is the earliest offset and -1 the latest.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import msgspec

from quiver.errors import InvalidSetting

EARLIEST, LATEST = -2, -1
Place = tuple[str, int]
"""A topic and one of its partitions."""
Offsets = dict[Place, int]


class Extent(msgspec.Struct, frozen=True):
    """What a partition holds: offsets from ``start`` up to, not including, ``next``."""

    start: int
    next: int
    bytes: int = 0

    @property
    def bytes_per_message(self) -> float:
        return self.bytes / max(1, self.next - self.start)


class Range(msgspec.Struct, frozen=True):
    """Offsets of one partition, from ``start`` up to, not including, ``end``."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def place(self) -> Place:
        return self.topic, self.partition

    def __len__(self) -> int:
        return self.end - self.start


def offsets_from_json(setting: str, value: str | Mapping[str, Any]) -> Offsets:
    """Offsets as an option or Spark's checkpoint gives them; ``InvalidSetting`` if they are not."""
    try:
        given = msgspec.json.decode(value) if isinstance(value, str) else value
        parsed = {
            (str(topic), int(partition)): int(offset)
            for topic, partitions in given.items()
            for partition, offset in partitions.items()
        }
    except (msgspec.MsgspecError, AttributeError, TypeError, ValueError) as error:
        raise InvalidSetting(
            f'{setting} must be "earliest", "latest" or JSON such as {{"topic": {{"0": 17}}}}, '
            f"not {str(value)[:200]!r}",
            setting=setting,
        ) from error
    if any(offset < EARLIEST for offset in parsed.values()):
        raise InvalidSetting(f"{setting} has an offset below -2", setting=setting)
    return parsed


def offsets_as_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    written: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        written.setdefault(topic, {})[str(partition)] = offset
    return written


def resolved(wanted: int, extent: Extent) -> int:
    """The offset itself, where it is given by name."""
    if wanted == EARLIEST:
        return extent.start
    return extent.next if wanted == LATEST else wanted


def ranges_between(start: Offsets, end: Offsets) -> list[Range]:
    """What lies between; a partition that ``start`` does not know is read from its beginning."""
    return [
        Range(*place, start.get(place, 0), until)
        for place, until in sorted(end.items())
        if until > start.get(place, 0)
    ]


def split(ranges: list[Range], count_min: int) -> list[Range]:
    """At least so many ranges, as far as there are messages, by cutting the large ones."""
    total = sum(map(len, ranges))
    if len(ranges) >= count_min or total == 0:
        return ranges
    pieces: list[Range] = []
    for one in ranges:
        parts = max(1, min(len(one), -(-len(one) * count_min // total)))
        cuts = [one.start + len(one) * part // parts for part in range(parts + 1)]
        pieces += [Range(one.topic, one.partition, begin, end) for begin, end in pairwise(cuts)]
    return pieces


def limited(start: Offsets, latest: Offsets, messages_max: int) -> Offsets:
    """Ends at most so many messages further on, shared out by how much each partition has.

    Every partition with messages gets at least one, so that a large neighbour starves none, and the
    sum may exceed the limit by as many as there are partitions.
    """
    waiting = {place: max(0, end - start.get(place, 0)) for place, end in latest.items()}
    total = sum(waiting.values())
    if total <= messages_max:
        return dict(latest)
    return {
        place: start.get(place, 0) + min(count, max(1, count * messages_max // total))
        if count
        else latest[place]
        for place, count in waiting.items()
    }
