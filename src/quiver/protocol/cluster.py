"""The cluster: its nodes, who holds and leads which partition, and what nodes ask each other."""

from __future__ import annotations

import msgspec

from quiver.protocol.base import Reply, Request


class AskPeer(Request, tag="ask_peer"):
    """A node of the cluster asks another. What it asks is between nodes of one version."""

    question: bytes


class PeerAnswer(Reply, tag="peer_answer"):
    answer: bytes


class NodeInfo(msgspec.Struct, kw_only=True):
    """A node of the cluster, as the node asked knows it."""

    id: str
    address: str = ""
    """Where it speaks the native protocol, as host:port."""
    http: str = ""
    """Where it speaks HTTP, as host:port; empty if nowhere."""
    zone: str = ""
    version: str = ""
    role: str = "full"
    """``full``, or ``forwarder``, which holds nothing."""
    alive: bool = True
    draining: bool = False
    """It is to be emptied."""
    leads: int = 0
    """How many partitions it leads."""
    holds: int = 0
    """How many replicas it holds."""


class PartitionPlacement(msgspec.Struct, kw_only=True):
    """Who holds a partition, and who leads it."""

    topic: str
    index: int
    leader: str | None = None
    """``None`` while nobody leads it."""
    epoch: int = 0
    replicas: list[str] = []
    """The first is the one that leads if all is well."""
    in_sync: list[str] = []
    target: list[str] = []
    """Where the replicas are to be, while they are being moved."""
    min_in_sync: int = 1


class ClusterInfo(msgspec.Struct, kw_only=True):
    nodes: list[NodeInfo]
    partitions: list[PartitionPlacement]
    controller: str | None = None
    """The node that elects leaders and places replicas."""
    revision: int = 0
    """Grows with every change that the nodes agree on."""


class DescribeCluster(Request, tag="describe_cluster"):
    pass


class Cluster(Reply, tag="cluster"):
    cluster: ClusterInfo


class MovePartition(Request, tag="move_partition"):
    """Have these nodes, and no others, hold a partition; it is copied while it is used."""

    topic: str
    partition: int
    nodes: list[str]
    """The first is the one that leads if all is well."""


class TransferLead(Request, tag="transfer_lead"):
    """Have another in-sync replica lead a partition."""

    topic: str
    partition: int
    node: str | None = None
    """The best of the others if not given."""


class Decommission(Request, tag="decommission"):
    """Empty a node: what it leads and holds goes to others."""

    node: str
    cancel: bool = False
    """Let it hold replicas again."""
