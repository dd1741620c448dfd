"""How a cluster is shown: a summary, and tables of nodes and partitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from quiver.cli.support.text import harmless, versions_of
from quiver.protocol import ClusterInfo, NodeInfo, PartitionPlacement

Table = tuple[Sequence[str], list[Sequence[object]]]


class NodeCounts(msgspec.Struct, kw_only=True):
    alive: int
    down: list[str]
    draining: list[str]
    full: list[str] = []
    """Those whose disk is full: they take no publishes."""
    forwarders: int = 0


class PartitionCounts(msgspec.Struct, kw_only=True):
    total: int
    led: int
    under_replicated: int
    """With a leader, but not all replicas in sync."""
    below_min_in_sync: int
    """Without a leader, or with too few in-sync replicas for a publish with acks ``quorum``."""
    moving: int


class Summary(msgspec.Struct, kw_only=True):
    health: Literal["ok", "degraded", "unavailable"]
    """``degraded``: everything works, but a node or a replica is missing, or a disk is full.
    ``unavailable``: some partitions accept no durable publishes."""
    nodes: NodeCounts
    partitions: PartitionCounts
    controller: str | None
    revision: int
    versions: dict[str, list[str]] = {}
    """The live nodes and forwarders by their version of Quiver: several while they are upgraded."""


def summary_of(cluster: ClusterInfo) -> Summary:
    nodes = NodeCounts(
        alive=sum(one.alive and one.role == "full" for one in cluster.nodes),
        down=[one.id for one in cluster.nodes if not one.alive],
        draining=[one.id for one in cluster.nodes if one.draining],
        full=[one.id for one in cluster.nodes if one.disk_is_full],
        forwarders=sum(one.role == "forwarder" for one in cluster.nodes),
    )
    parts = cluster.partitions
    counts = PartitionCounts(
        total=len(parts),
        led=sum(one.leader is not None for one in parts),
        under_replicated=sum(
            one.leader is not None and len(one.in_sync) < len(one.replicas) for one in parts
        ),
        below_min_in_sync=sum(
            one.leader is None or len(one.in_sync) < one.min_in_sync for one in parts
        ),
        moving=sum(bool(one.target) for one in parts),
    )
    refused = counts.below_min_in_sync or any(one.leader in nodes.full for one in parts)
    missing = nodes.down or nodes.full or counts.under_replicated or cluster.controller is None
    return Summary(
        health="unavailable" if refused else "degraded" if missing else "ok",
        nodes=nodes,
        partitions=counts,
        controller=cluster.controller,
        revision=cluster.revision,
        versions=versions_of(cluster.nodes),
    )


def shown_nodes(cluster: ClusterInfo) -> Table:
    has_hosts = any(one.host for one in cluster.nodes)  # processes of one machine
    return (
        (
            *(("MACHINE",) if has_hosts else ()),
            *("NODE", "STATE", "NATIVE", "HTTP", "ZONE", "VERSION", "ROLE", ">LEADS", ">HOLDS"),
        ),
        [
            (
                *((harmless(one.host) or "-",) if has_hosts else ()),
                harmless(one.id) + (" (controller)" if one.id == cluster.controller else ""),
                _state(one),
                harmless(one.address) or "-",
                harmless(one.http) or "-",
                harmless(one.zone) or "-",
                harmless(one.version) or "-",
                one.role,
                one.leads,
                one.holds,
            )
            for one in cluster.nodes
        ],
    )


def shown_partitions(partitions: Sequence[PartitionPlacement]) -> Table:
    return (
        ("PARTITION", "LEADER", ">EPOCH", "REPLICAS", "NOT IN SYNC", "ELIGIBLE", "MOVING TO"),
        [
            (
                f"{one.topic}/{one.index}",
                one.leader or "(none)",
                one.epoch,
                " ".join(one.replicas),
                " ".join(node for node in one.replicas if node not in one.in_sync),
                " ".join(one.eligible),
                " ".join(one.target),
            )
            for one in partitions
        ],
    )


def _state(node: NodeInfo) -> str:
    if not node.alive:
        return "down"
    if node.draining:
        return "decommissioning"
    return "disk full" if node.disk_is_full else "up"
