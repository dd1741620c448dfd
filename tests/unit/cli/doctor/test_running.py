"""What the checks of a running node say of what it answers."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from quiver.cli.doctor.running import examine_running
from quiver.errors import ConnectionLost, NotACluster
from quiver.protocol import ClusterInfo, Node, NodeInfo, PartitionPlacement
from quiver.version import __version__


def _client(
    *,
    software: str = f"quiver/{__version__}",
    ahead_s: float = 0,
    failed: int = 0,
    metrics: str = "",
    cluster: ClusterInfo | None = None,
) -> Any:
    def describe_node() -> Node:
        return Node(
            node="n1",
            software=software,
            uptime_s=1,
            topics=1,
            partitions=1,
            connections=1,
            time_us=round((time.time() + ahead_s) * 1e6),
        )

    def describe_cluster() -> ClusterInfo:
        if cluster is None:
            raise NotACluster()
        return cluster

    return SimpleNamespace(
        describe_node=describe_node,
        describe_cluster=describe_cluster,
        metrics=lambda: metrics or f"quiver_disk_free_bytes 5\nquiver_partitions_failed {failed}\n",
        alerts=lambda: SimpleNamespace(firing=[]),
    )


def _nobody() -> Any:
    raise ConnectionLost("no")


def _found(client: Any) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in examine_running(client, _nobody, "quiver://n1"):
        found.setdefault(one.check, []).append(f"{one.verdict}: {one.message}")
    return found


def test_a_clock_that_differs_is_told_with_how_much() -> None:
    assert _found(_client())["clock"][0].startswith("ok")
    assert "ahead of" in _found(_client(ahead_s=60))["clock"][0]
    assert "60.0 s behind" in _found(_client(ahead_s=-60))["clock"][0]


def test_another_version_is_a_warning() -> None:
    assert _found(_client(software="quiver/9.9"))["version"][0].startswith("warning")


def test_partitions_that_failed_are_a_failure() -> None:
    assert _found(_client(failed=2))["readiness"] == ["failure: 2 partitions cannot be written to"]


def test_the_metrics_of_all_processes_of_a_machine_count() -> None:
    def each(name: str, first: int, second: int) -> str:
        return f'{name}{{process="0"}} {first}\n{name}{{process="1"}} {second}\n'

    free = each("quiver_disk_free_bytes", 5000, 5000)
    well = free + each("quiver_partitions", 2, 3) + each("quiver_partitions_failed", 0, 0)
    found = _found(_client(metrics=well))
    assert found["disk space"] == ["ok: 4.9 KiB free on the disk of the node's data folder"]
    assert found["readiness"] == ["ok: 5 partitions open, none failed"]
    failed = free + each("quiver_partitions_failed", 0, 1)
    found = _found(_client(metrics=failed))
    assert found["readiness"] == ["failure: 1 partition cannot be written to"]


def test_processes_of_one_machine_are_told_from_nodes_of_their_own() -> None:
    nodes = [NodeInfo(id=f"m.{one}", host="m") for one in (0, 1)]
    cluster = ClusterInfo(nodes=nodes, partitions=[], controller="m.0")
    (message,) = _found(_client(cluster=cluster))["cluster"]
    assert message == "ok: 2 processes of one machine, all replicas in sync, controller m.0"


def test_a_cluster_is_judged_by_its_nodes_leaders_and_replicas() -> None:
    def placed(leader: str | None, in_sync: list[str]) -> PartitionPlacement:
        return PartitionPlacement(
            topic="t", index=0, leader=leader, replicas=["n1", "n2"], in_sync=in_sync
        )

    well = ClusterInfo(nodes=[NodeInfo(id="n1")], partitions=[placed("n1", ["n1", "n2"])])
    assert [one.split(":")[0] for one in _found(_client(cluster=well))["cluster"]] == ["ok"]
    ill = ClusterInfo(
        nodes=[NodeInfo(id="n1"), NodeInfo(id="n2", alive=False)],
        partitions=[placed("n1", ["n1"]), placed(None, [])],
    )
    assert _found(_client(cluster=ill))["cluster"] == [
        "failure: nodes are down: n2",
        "failure: partitions without a leader: t/0",
        "warning: 2 partitions with replicas that are not in sync",
    ]
    assert "cluster" not in _found(_client())


def test_nodes_that_take_no_publishes_because_their_disk_is_full_are_a_failure() -> None:
    nodes = [NodeInfo(id="n1"), NodeInfo(id="n2", disk_is_full=True)]
    cluster = ClusterInfo(nodes=nodes, partitions=[], controller="n1")
    assert _found(_client(cluster=cluster))["cluster"] == ["failure: disks are full: n2"]


def test_nodes_of_different_versions_are_told() -> None:
    def nodes(*versions: str) -> ClusterInfo:
        found = [NodeInfo(id=f"n{at}", version=one) for at, one in enumerate(versions)]
        return ClusterInfo(nodes=found, partitions=[], controller="n0")

    same, *_ = _found(_client(cluster=nodes("0.1.0", "0.1.0")))["cluster"]
    assert same.startswith("ok")
    mixed, *_ = _found(_client(cluster=nodes("0.2.0", "0.1.0")))["cluster"]
    assert mixed == "warning: nodes have different versions: 0.1.0 on n1; 0.2.0 on n0"
