"""What ``quiver cluster status`` makes of a cluster."""

from __future__ import annotations

import pytest

from quiver.cli.cluster.text import shown_nodes, shown_partitions, summary_of
from quiver.cli.support.text import shown_versions
from quiver.protocol import ClusterInfo, NodeInfo, PartitionPlacement

THREE = ["a", "b", "c"]


def cluster(
    *partitions: PartitionPlacement,
    down: tuple[str, ...] = (),
    full: tuple[str, ...] = (),
    controller: str | None = "a",
) -> ClusterInfo:
    nodes = [NodeInfo(id=name, alive=name not in down, disk_is_full=name in full) for name in THREE]
    return ClusterInfo(nodes=nodes, partitions=list(partitions), controller=controller)


def partition(
    leader: str | None = "a", in_sync: str = "abc", target: str = "", eligible: str = ""
) -> PartitionPlacement:
    return PartitionPlacement(
        topic="orders",
        index=0,
        leader=leader,
        replicas=THREE,
        in_sync=list(in_sync),
        eligible=list(eligible),
        target=list(target),
        min_in_sync=2,
    )


@pytest.mark.parametrize(
    ("told", "health"),
    [
        (cluster(partition()), "ok"),
        (cluster(), "ok"),
        (cluster(partition(target="abd")), "ok"),
        (cluster(partition(in_sync="ab")), "degraded"),
        (cluster(partition(), down=("c",)), "degraded"),
        (cluster(partition(), full=("b",)), "degraded"),
        (cluster(partition(), full=("a",)), "unavailable"),
        (cluster(partition(), controller=None), "degraded"),
        (cluster(partition(in_sync="a")), "unavailable"),
        (cluster(partition(leader=None)), "unavailable"),
    ],
)
def test_health_is_the_worst_of_what_is_wrong(told: ClusterInfo, health: str) -> None:
    assert summary_of(told).health == health


def test_versions_that_differ_are_shown_with_their_nodes_the_oldest_first() -> None:
    told = cluster(partition(), down=("c",))
    for node, version in zip(told.nodes, ("0.10.0", "0.9.0", "0.1.0"), strict=True):
        node.version = version
    assert summary_of(told).versions == {"0.9.0": ["b"], "0.10.0": ["a"]}
    assert shown_versions(summary_of(told).versions) == "0.9.0 on b; 0.10.0 on a"


def test_forwarders_are_counted_and_shown_apart_from_nodes() -> None:
    told = cluster(partition())
    told.nodes.append(NodeInfo(id="edge-1", role="forwarder"))
    nodes = summary_of(told).nodes
    assert (nodes.alive, nodes.forwarders) == (3, 1)
    _, rows = shown_nodes(told)
    assert [row[6] for row in rows] == ["full", "full", "full", "forwarder"]


def test_the_summary_counts() -> None:
    told = summary_of(
        cluster(
            partition(),
            partition(in_sync="ab", target="abd"),
            partition(leader=None, in_sync="a"),
            down=("c",),
        )
    )
    assert (told.nodes.alive, told.nodes.down) == (2, ["c"])
    counts = told.partitions
    assert (counts.total, counts.led, counts.moving) == (3, 2, 1)
    assert (counts.under_replicated, counts.below_min_in_sync) == (1, 1)


def test_tables_show_what_is_missing() -> None:
    _, (row,) = shown_partitions([partition(leader=None, in_sync="ab")])
    assert row[1] == "(none)"
    assert row[4] == "c"
    heads, (row,) = shown_partitions([partition(in_sync="a", eligible="bc")])
    assert dict(zip(heads, row, strict=True))["ELIGIBLE"] == "b c"
    _, rows = shown_nodes(cluster(down=("b",)))
    assert [(one[0], one[1]) for one in rows] == [
        ("a (controller)", "up"),
        ("b", "down"),
        ("c", "up"),
    ]
