"""A topic of a backup, checked: its partitions, where each begins, and how they came about. Pure."""

from __future__ import annotations

from quiver.broker.topics.catalog import RestoredTopic
from quiver.errors import InvalidRequest
from quiver.model.ids import Offset
from quiver.model.key_hash import HASHES
from quiver.model.layout import Split
from quiver.model.mirror.origin import Origin
from quiver.model.topic import PARTITIONS_MAX
from quiver.protocol import PartitionInfo, TopicInfo

_NUMBER_MAX = (1 << 32) - 1
"""A message id has room for no more."""


def restored_topic(
    info: TopicInfo, backup: str = "", origin: Origin | None = None
) -> RestoredTopic:
    """``InvalidRequest`` if that is not the description of a topic that could be."""
    partitions = info.partitions
    if not 0 < len(partitions) <= PARTITIONS_MAX or not 0 < info.number <= _NUMBER_MAX:
        raise _invalid(info, "it has no partitions, too many, or no number")
    if [one.index for one in partitions] != list(range(len(partitions))):
        raise _invalid(info, "its partitions are not numbered from 0 on")
    first_hashes = [one.first_hash for one in partitions]
    if (
        min(first_hashes) != 0
        or max(first_hashes) >= HASHES
        or len(set(first_hashes)) != len(first_hashes)
    ):
        raise _invalid(info, "its ranges of key hashes do not cover all keys once")
    splits = _splits(info)
    if info.layout != 1 + len(splits) or len(partitions) - len(splits) != info.settings.partitions:
        raise _invalid(info, "its layout and its splits do not agree")
    return RestoredTopic(
        backup=backup,
        origin=origin,
        name=info.name,
        number=info.number,
        layout=info.layout,
        settings=info.settings,
        first_hashes=first_hashes,
        first_offsets=[max(0, one.start_offset or 0) for one in partitions],
        splits=splits,
    )


def _splits(info: TopicInfo) -> list[Split]:
    """The layout grows by one with each split, and each adds one partition at the end."""
    children = [one for one in info.partitions if one.parent is not None]
    return [_split(info, one, place) for place, one in enumerate(children)]


def _split(info: TopicInfo, child: PartitionInfo, place: int) -> Split:
    if child.parent is None or not 0 <= child.parent < child.index or child.parent_offset is None:
        raise _invalid(info, f"partition {child.index} does not say how it was split off")
    return Split(
        parent=child.parent,
        child=child.index,
        offset=Offset(child.parent_offset),
        layout=2 + place,
    )


def _invalid(info: TopicInfo, why: str) -> InvalidRequest:
    return InvalidRequest(f"topic {info.name[:200]!r} cannot be restored: {why}")
