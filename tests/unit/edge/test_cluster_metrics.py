"""Each partition is told of by one node, and nodes that are gone by the controller."""

from __future__ import annotations

from quiver.broker.alerts.machine import AlertMachine
from quiver.config.alert_rule import AlertRule
from quiver.edge.cluster_metrics import with_cluster
from quiver.metrics.sample import NodeSample, TopicSample
from quiver.protocol import ClusterInfo, NodeInfo, PartitionPlacement

SAMPLE = NodeSample(time_us=1, topics=[TopicSample(name="orders", size=7)], subscriptions=[])
ALL = ["a", "b", "c"]


def cluster(*leaders: str | None, in_sync: tuple[str, ...] = ("a", "b")) -> ClusterInfo:
    """One partition of three replicas for each leader; a is the controller, and c is gone."""
    return ClusterInfo(
        nodes=[NodeInfo(id=name, alive=name != "c") for name in ALL],
        partitions=[
            PartitionPlacement(
                topic="orders",
                index=index,
                leader=leader,
                epoch=index + 1,
                replicas=ALL,
                in_sync=list(in_sync),
            )
            for index, leader in enumerate(leaders)
        ],
        controller="a",
    )


def told(info: ClusterInfo | None, node: str) -> tuple[int | None, int | None, int | None]:
    [topic] = with_cluster(SAMPLE, info, node).topics
    assert topic.size == 7
    return topic.in_sync, topic.missing, topic.leader_changes


def test_a_node_on_its_own_tells_nothing_of_a_cluster() -> None:
    assert with_cluster(SAMPLE, None, "a") is SAMPLE


def test_each_partition_is_told_by_its_leader() -> None:
    info = cluster("a", "b", "b")
    assert told(info, "a") == (2, 1, 6)
    assert told(info, "b") == (2, 2, 6)
    assert told(info, "c") == (None, None, 6)


def test_a_partition_that_nobody_leads_is_told_by_the_controller() -> None:
    info = cluster(None, in_sync=())
    assert told(info, "a") == (0, 3, 1)
    assert told(info, "b") == (None, None, 1)


def test_eligible_replicas_are_counted_over_all_partitions() -> None:
    info = cluster("a", "a", "b", in_sync=("a",))
    for one in info.partitions:
        one.eligible = ["b", "c"]
    told_by_all = [with_cluster(SAMPLE, info, node).topics[0].eligible for node in ALL]
    assert told_by_all == [4, 2, None]


def test_nodes_that_are_gone_are_told_by_the_controller() -> None:
    assert with_cluster(SAMPLE, cluster("b"), "a").nodes_down == ["c"]
    assert with_cluster(SAMPLE, cluster("b"), "b").nodes_down == []


def test_alerts_fire_for_what_is_told() -> None:
    rules = (
        AlertRule(name="node-down", watch="node_down", limit=0),
        AlertRule(name="under-replicated", watch="under_replicated", limit=0),
    )
    changes = AlertMachine(rules).evaluate(with_cluster(SAMPLE, cluster("a"), "a"), 0.0)
    assert [(one.rule, one.subject) for one in changes] == [
        ("node-down", "c"),
        ("under-replicated", "orders"),
    ]
