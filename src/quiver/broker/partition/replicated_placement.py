"""Which node serves which partition, as the cluster has decided."""

from __future__ import annotations

from quiver.broker.partition.follower_log import FollowerLog
from quiver.broker.partition.leadership import DATA, Leadership
from quiver.broker.partition.replication_lag import ReplicationLag
from quiver.broker.topics.catalog import TopicRecord
from quiver.cluster.node import ClusterNode
from quiver.cluster.records import PartitionId
from quiver.errors import NotLeader
from quiver.model.clock import Clock
from quiver.protocol import ReplicaInfo


def partition_id(record: TopicRecord, index: int) -> PartitionId:
    return PartitionId(f"{record.folder}/{index}")


class ReplicatedPlacement:
    def __init__(self, cluster: ClusterNode, leadership: Leadership, clock: Clock) -> None:
        self.replication: ReplicationLag | None = ReplicationLag(cluster)
        self._cluster = cluster
        self._leadership = leadership
        self._clock = clock

    @property
    def version(self) -> int:
        return self._leadership.version

    def may_lack(self, record: TopicRecord) -> bool:
        """Else one that does is a former leader's, who does not know that it was replaced."""
        return record.settings.allow_data_loss

    def leads(self, record: TopicRecord, index: int) -> bool:
        """Also what it was elected for and is about to lead: whoever comes waits for that."""
        partition = partition_id(record, index)
        replica = self._cluster.replica_manager.replica(partition)
        return (replica is not None and replica.is_leading) or self.is_elected(partition)

    def leader(self, record: TopicRecord, index: int) -> str | None:
        state = self._cluster.view.state
        versioned = state.partitions.get(partition_id(record, index))
        node = None if versioned is None else state.nodes.get(versioned.record.leader)
        return None if node is None else node.address

    def in_sync(self, record: TopicRecord, index: int) -> list[ReplicaInfo]:
        state = self._cluster.view.state
        versioned = state.partitions.get(partition_id(record, index))
        names = () if versioned is None else versioned.record.in_sync
        nodes = [state.nodes[name] for name in names if name in state.nodes]
        return [ReplicaInfo(node.address, node.zone) for node in nodes]

    def follower(self, record: TopicRecord, index: int) -> FollowerLog | None:
        replica = self._cluster.replica_manager.replica(partition_id(record, index))
        if replica is None or replica.is_leading or replica.record is None:
            return None
        if self._cluster.membership.record.id not in replica.record.in_sync:
            return None
        return FollowerLog(replica, DATA, self._clock)

    def is_sole_holder(self, record: TopicRecord, index: int) -> bool:
        versioned = self._cluster.view.state.partitions.get(partition_id(record, index))
        if versioned is None:
            return False
        holders = {*versioned.record.in_sync, *versioned.record.eligible}
        return holders == {self._cluster.membership.record.id}

    def term(self, record: TopicRecord, index: int) -> int:
        replica = self._cluster.replica_manager.replica(partition_id(record, index))
        if replica is None or not replica.is_leading:
            raise self.not_leader(record, index)
        return replica.leading.machine.epoch

    def is_elected(self, partition: PartitionId) -> bool:
        """Whether this node was elected to lead the partition, be it that it does not lead yet."""
        versioned = self._cluster.view.state.partitions.get(partition)
        own = self._cluster.membership.record.id, self._cluster.membership.session
        return versioned is not None and (versioned.record.leader, versioned.record.session) == own

    def not_leader(self, record: TopicRecord, index: int) -> NotLeader:
        leader = self.leader(record, index)
        return NotLeader(
            f"this node is not the leader of partition {index} of {record.name!r}", leader=leader
        )
