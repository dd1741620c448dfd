"""Which of two topics was copied from the other, and how what they do not share is named. Pure."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count

from quiver.broker.topics.catalog import TopicRecord
from quiver.protocol import TopicInfo

_NAME_LENGTH_MAX = 200


def was_copied_from(info: TopicInfo, record: TopicRecord, cluster: str) -> bool:
    """Whether a topic of the source was a copy of one of this ``cluster`` until it was promoted.

    And is the later primary of the two: each may have been promoted after the other.
    """
    copied = info.promoted_from
    if copied is None or info.moved_to or info.promotions <= record.promotions:
        return False
    if copied.cluster == cluster:
        return (copied.topic, copied.number) == (record.name, record.number)
    return cluster in copied.through


def returns_renamed(info: TopicInfo, name: str, cluster: str) -> bool:
    """Whether a promoted topic of the source has messages of this ``cluster``, where they have another
    name than ``name``. Under their own name they may come back: that is a failback."""
    copied = info.promoted_from
    return copied is not None and cluster in copied.clusters and copied.topic != name


def aside_name(name: str, now_us: int, is_taken: Callable[[str], bool]) -> str:
    """The name of the topic for what only this cluster has of another.

    One of an earlier failback is not used again, whatever the clock says: its messages stay apart.
    """
    time = datetime.fromtimestamp(now_us // 1_000_000, UTC)
    suffix = f".diverged-{time:%Y%m%d-%H%M%S}"
    for number in count(2):
        aside = name[: _NAME_LENGTH_MAX - len(suffix)] + suffix
        if not is_taken(aside):
            break
        suffix = f".diverged-{time:%Y%m%d-%H%M%S}-{number}"
    return aside
