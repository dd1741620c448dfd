"""Calls for topics, and their descriptions."""

from __future__ import annotations

from typing import Any

import msgspec

from quiver.model.mirror.origin import Origin
from quiver.model.topic import TopicSettings
from quiver.protocol.base import Reply, Request


class ReplicaInfo(msgspec.Struct, frozen=True):
    """An in-sync replica of a partition, which may be read from."""

    address: str
    zone: str


class OpenTransactionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction that has published to a partition and is open."""

    transaction: int
    since_us: int
    """When the partition stored the first of its messages."""
    first_offset: int
    """The first of its messages there. Readers stop before it."""


class PartitionInfo(msgspec.Struct, kw_only=True):
    index: int
    first_hash: int
    """First key hash of the partition's range. The range ends where the next one begins."""
    leader: str | None = None
    """Native address of the leader, as host:port; ``None``: the node that answers."""
    start_offset: int | None = None
    next_offset: int | None = None
    bytes: int | None = None
    dedup_forgotten: int = 0
    """Ids that the dedup window forgot before their time, since the partition was opened."""
    in_sync: list[ReplicaInfo] = []
    """In a cluster: the in-sync replicas, the leader included."""
    parent: int | None = None
    """The partition it was split from; ``None`` if it was created with the topic."""
    parent_offset: int | None = None
    """From this offset on the parent has no keys of this partition. Earlier messages come first."""
    has_open_transactions: bool = False
    """Whether a transaction is open that has published to it, or acknowledges messages of it. Readers
    and ``next_offset`` stay before what it has published."""
    open_transactions: list[OpenTransactionInfo] = []
    """Those that have published to it, in the order of their first messages; the first 100."""


class TopicInfo(msgspec.Struct, kw_only=True):
    name: str
    number: int
    """Never reused, not even for a later topic with the same name."""
    layout: int
    """Increases when partitions change. A publish names the layout it was routed with."""
    settings: TopicSettings
    created_us: int
    partitions: list[PartitionInfo]
    restored_from: str = ""
    """The backup that it was restored from, if it was."""
    is_restoring: bool = False
    """Whether messages of that backup are still to come. It takes no publishes until then."""
    origin: Origin | None = None
    """Of a mirrored topic: where its messages come from. It takes no publishes until it is promoted."""
    moved_to: str = ""
    """The cluster whose copy was promoted in its place. It takes no publishes any more."""
    promoted_from: Origin | None = None
    """Of a topic that was mirrored until it was promoted: where its first messages came from."""
    promotions: int = 0
    """How many copies were promoted on the way from the first topic of that name to this one."""
    diverged_to: str = ""
    """The topic that has what this one had beyond its source when it became a copy again."""


class CreateTopic(Request, tag="create_topic"):
    name: str
    settings: TopicSettings
    exist_ok: bool = False
    """An existing topic with the same settings is not an error."""


class AlterTopic(Request, tag="alter_topic"):
    name: str
    changes: dict[str, Any]
    """Settings by name, as in ``TopicSettings``; ``retention`` may be given in part."""


class SplitPartition(Request, tag="split_partition"):
    """Have a partition give half of its range of key hashes to a new one. Its leader does it."""

    topic: str
    partition: int
    layout: int
    """The layout that the caller knows: one that has been split since is not split again."""


class DeleteTopic(Request, tag="delete_topic"):
    name: str


class DescribeTopic(Request, tag="describe_topic"):
    name: str
    extents: bool = True
    """Whether it matters where each partition begins and ends: then other nodes may be asked."""


class ListTopics(Request, tag="list_topics"):
    pass


class Topic(Reply, tag="topic"):
    topic: TopicInfo


class Topics(Reply, tag="topics"):
    topics: list[TopicInfo]
