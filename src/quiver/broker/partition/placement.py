"""Which node serves which partition: this one alone, or as the cluster has decided."""

from __future__ import annotations

from typing import Protocol

from quiver.broker.partition.follower_log import FollowerLog
from quiver.broker.partition.replication_lag import ReplicationLag
from quiver.broker.topics.catalog import TopicRecord
from quiver.protocol import ReplicaInfo


class Placement(Protocol):
    @property
    def version(self) -> int:
        """Grows whenever this node begins or ceases to lead something."""

    @property
    def replication(self) -> ReplicationLag | None:
        """How well replicas keep up, where there are any."""

    def may_lack(self, record: TopicRecord) -> bool:
        """Whether a partition may end before an offset that was committed once."""

    def leads(self, record: TopicRecord, index: int) -> bool:
        """Whether this node serves the partition."""

    def leader(self, record: TopicRecord, index: int) -> str | None:
        """Where the partition is served, if that is another node's address that is known."""

    def in_sync(self, record: TopicRecord, index: int) -> list[ReplicaInfo]:
        """The nodes where a partition's committed messages are, where there are several."""

    def follower(self, record: TopicRecord, index: int) -> FollowerLog | None:
        """The partition as this node has it if it is in sync and does not lead."""

    def is_sole_holder(self, record: TopicRecord, index: int) -> bool:
        """Whether no other node may lead the partition, so that it is led here or not at all."""

    def term(self, record: TopicRecord, index: int) -> int:
        """Under which epoch this node leads a partition; ``NotLeader`` if it does not."""


class LocalPlacement:
    """A single node serves everything."""

    version = 0
    replication = None

    def may_lack(self, _record: TopicRecord) -> bool:
        """After a loss of power, where not every message is synced."""
        return True

    def leads(self, _record: TopicRecord, _index: int) -> bool:
        return True

    def leader(self, _record: TopicRecord, _index: int) -> str | None:
        return None

    def in_sync(self, _record: TopicRecord, _index: int) -> list[ReplicaInfo]:
        return []

    def follower(self, _record: TopicRecord, _index: int) -> FollowerLog | None:
        return None

    def is_sole_holder(self, _record: TopicRecord, _index: int) -> bool:
        return True

    def term(self, record: TopicRecord, _index: int) -> int:
        """Another one once the log was cut: whoever copies it compares it again."""
        return record.cuts
