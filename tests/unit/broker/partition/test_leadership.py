"""Who serves a partition is told of its commits for as long as this node leads it."""

from __future__ import annotations

from quiver.broker.partition.leadership import DATA, STATE, Leadership
from quiver.broker.partition.listener import PartitionListener
from quiver.cluster.metadata.store import Entry
from quiver.cluster.records import NodeId, PartitionId, PartitionRecord, encode, partition_key
from quiver.log.group_commit import Committed
from quiver.testing.clock import ManualClock

A, B = NodeId("a"), NodeId("b")
P, Q = PartitionId("t/0"), PartitionId("t/1")
ONE = Committed(messages=1, size=100, batches=1, sync_seconds=None)


class Told:
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.listener = PartitionListener(
            lost=lambda: self.calls.append("lost"),
            stored=lambda committed: self.calls.append("stored"),
            state_stored=lambda committed: self.calls.append("state"),
        )


def leadership() -> Leadership:
    return Leadership(A, ManualClock(), lambda partition: None)


def elected(node: NodeId) -> Entry:
    record = PartitionRecord(replicas=(A, B), leader=node, in_sync=(A, B))
    return Entry(partition_key(P), encode(record), 1)


def test_each_log_of_a_partition_that_is_served_is_told_of() -> None:
    told, leads = Told(), leadership()
    leads.serves(P, told.listener)
    leads.stored(P, DATA, ONE)
    leads.stored(P, STATE, ONE)
    assert told.calls == ["stored", "state"]


def test_what_is_copied_from_another_leader_is_not_told() -> None:
    told, leads = Told(), leadership()
    leads.serves(P, told.listener)
    leads.stored(Q, DATA, ONE)
    assert told.calls == []


def test_nothing_is_told_after_the_end() -> None:
    told, leads = Told(), leadership()
    leads.serves(P, told.listener)
    leads.ended(P)
    leads.stored(P, DATA, ONE)
    leads.ended(P)
    assert told.calls == ["lost"]


def test_only_an_election_of_this_node_changes_the_version() -> None:
    leads = leadership()
    leads.learn([elected(B)])
    assert leads.version == 0
    leads.learn([elected(A)])
    assert leads.version == 1
