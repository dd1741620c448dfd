"""The description of a topic in a backup: whether such a topic could be."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from quiver.broker.definitions.restored_topic import restored_topic
from quiver.errors import InvalidRequest
from quiver.model.topic import TopicSettings
from quiver.protocol import PartitionInfo, TopicInfo

HALF = 1 << 31
SPLIT = TopicInfo(
    name="orders",
    number=7,
    layout=2,
    settings=TopicSettings(partitions=1),
    created_us=0,
    partitions=[
        PartitionInfo(index=0, first_hash=0, start_offset=5),
        PartitionInfo(index=1, first_hash=HALF, start_offset=0, parent=0, parent_offset=9),
    ],
)


def test_splits_and_first_offsets_are_taken_over() -> None:
    restored = restored_topic(SPLIT, "b")
    assert (restored.first_hashes, restored.first_offsets) == ([0, HALF], [5, 0])
    (split,) = restored.splits
    assert (split.parent, split.child, split.offset, split.layout) == (0, 1, 9, 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"number": 0},
        {"number": 1 << 32},
        {"layout": 1},
        {"partitions": []},
        {"partitions": SPLIT.partitions[::-1]},
        {"partitions": SPLIT.partitions[1:]},
        {"partitions": [SPLIT.partitions[0], replace(SPLIT.partitions[1], first_hash=0)]},
        {"partitions": [SPLIT.partitions[0], replace(SPLIT.partitions[1], parent=1)]},
        {"partitions": [SPLIT.partitions[0], replace(SPLIT.partitions[1], parent_offset=None)]},
        {"settings": TopicSettings(partitions=2)},
    ],
)
def test_what_could_not_be_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="cannot be restored"):
        restored_topic(replace(SPLIT, **changes), "b")
