"""What ``quiver topic describe`` shows of a topic."""

from __future__ import annotations

from quiver.cli.commands.topic import setting_rows
from quiver.model.topic import TopicSettings
from quiver.protocol import PartitionInfo, TopicInfo


def shown_window(*forgotten: int) -> str:
    partitions = [
        PartitionInfo(index=index, first_hash=0, dedup_forgotten=count)
        for index, count in enumerate(forgotten)
    ]
    settings = TopicSettings(dedup_window="1h")
    info = TopicInfo(
        name="t", number=1, layout=0, settings=settings, created_us=0, partitions=partitions
    )
    return dict(setting_rows(info))["dedup_window"]


def test_a_dedup_window_that_was_cut_says_so() -> None:
    assert shown_window(0, 0) == "1h"
    assert shown_window(1200, 34) == "1h; 1,234 ids forgotten early"
