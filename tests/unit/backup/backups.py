"""Backups for tests of what is pure about them."""

from __future__ import annotations

from quiver.backup.manifest import (
    Chunk,
    LastEntry,
    Manifest,
    PartitionBackup,
    StoredObject,
    SubscriptionBackup,
    TopicBackup,
)
from quiver.model.subscription import SubscriptionSettings
from quiver.model.topic import TopicSettings
from quiver.protocol import PartitionInfo, SubscriptionInfo, TopicInfo


def chunk_of(base_offset: int, next_offset: int) -> Chunk:
    """A chunk whose times are its offsets."""
    last = LastEntry(
        base_offset=next_offset - 1, count=1, append_time=next_offset - 1, checksum=next_offset
    )
    return Chunk(
        name=f"{base_offset}-{next_offset}",
        bytes=100,
        sha256="0" * 64,
        base_offset=base_offset,
        next_offset=next_offset,
        first_time=base_offset,
        last=last,
    )


def partition_of(*spans: tuple[int, int]) -> PartitionBackup:
    return PartitionBackup(
        start_offset=spans[0][0],
        next_offset=spans[-1][1],
        chunks=[chunk_of(*span) for span in spans],
    )


def topic_of(name: str, *partitions: PartitionBackup, number: int = 1) -> TopicBackup:
    infos = [
        PartitionInfo(index=index, first_hash=index, leader="there:1")
        for index in range(len(partitions))
    ]
    return TopicBackup(
        info=TopicInfo(
            name=name,
            number=number,
            layout=1,
            settings=TopicSettings(partitions=len(partitions)),
            created_us=number * 1000,
            partitions=infos,
        ),
        partitions=list(partitions),
    )


def subscription_of(name: str, *topics: str) -> SubscriptionBackup:
    return SubscriptionBackup(
        info=SubscriptionInfo(
            name=name, number=1, settings=SubscriptionSettings(topics=list(topics)), created_us=0
        ),
        state=StoredObject(name=f"state/{name}", bytes=0, sha256="0" * 64),
        partitions=[],
    )


def manifest_of(
    *topics: TopicBackup, subscriptions: tuple[SubscriptionBackup, ...] = ()
) -> Manifest:
    return Manifest(
        id="b",
        created_us=0,
        finished_us=1,
        software="quiver/0",
        topics=list(topics),
        subscriptions=list(subscriptions),
        tokens=[],
    )
