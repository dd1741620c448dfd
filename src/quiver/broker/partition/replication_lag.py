"""How far followers are behind, as their leader sees it."""

from __future__ import annotations

from quiver.cluster.control.admin import place_of
from quiver.cluster.node import ClusterNode
from quiver.cluster.replica.leader_driver import LeaderDriver


class ReplicationLag:
    def __init__(self, cluster: ClusterNode) -> None:
        self._cluster = cluster

    def lags(self) -> dict[str, int]:
        """By topic: how many messages the slowest replica is behind, of what this node leads."""
        found: dict[str, int] = {}
        for replica in self._cluster.replica_manager.replicas:
            if replica.is_leading:
                topic = place_of(replica.partition)[0]
                found[topic] = max(found.get(topic, 0), _lag(replica.leading))
        return found


def _lag(leading: LeaderDriver) -> int:
    log, record = leading.machine.logs[0], leading.machine.record
    others = [node for node in record.replicas if node != record.leader]
    # A follower may have synced what the leader is still syncing.
    return max([0, *(log.durable - (log.synced(node) or log.start) for node in others)])
