"""The cluster: its nodes, replicas and leaders, and the requests between nodes."""

from __future__ import annotations

import msgspec

from quiver.protocol.base import Reply, Request


class AskPeer(Request, tag="ask_peer"):
    """A node of the cluster asks another, of its version or of another: see ``edge/peers/messages.py``."""

    question: bytes


class PeerAnswer(Reply, tag="peer_answer"):
    answer: bytes


class NodeInfo(msgspec.Struct, kw_only=True):
    """A node of the cluster, as seen by the node that answers."""

    id: str
    address: str = ""
    """Address of the native protocol, as host:port."""
    http: str = ""
    """Address of HTTP, as host:port; empty if HTTP is off."""
    zone: str = ""
    host: str = ""
    """The machine that it is a process of, together with others; empty for a node of its own."""
    version: str = ""
    protocols: list[int] = []
    """Versions of the native protocol that it speaks; none if it does not say."""
    role: str = "full"
    """``full`` or ``forwarder``, which stores nothing."""
    alive: bool = True
    draining: bool = False
    """The node is being decommissioned."""
    disk_is_full: bool = False
    """The node refuses publishes until its disk has space; other nodes lead where they can."""
    leads: int = 0
    """Number of partitions that it leads."""
    holds: int = 0
    """Number of replicas that it stores."""


class PartitionPlacement(msgspec.Struct, kw_only=True):
    """The replicas and the leader of a partition."""

    topic: str
    index: int
    leader: str | None = None
    """``None`` while there is no leader."""
    epoch: int = 0
    replicas: list[str] = []
    """The first is the preferred leader."""
    in_sync: list[str] = []
    eligible: list[str] = []
    """Not in sync, but with every confirmed message: one becomes leader if nobody in sync can."""
    target: list[str] = []
    """The new replicas, while the partition moves."""
    min_in_sync: int = 1


class ClusterInfo(msgspec.Struct, kw_only=True):
    nodes: list[NodeInfo]
    partitions: list[PartitionPlacement]
    controller: str | None = None
    """The node that elects leaders and places replicas."""
    revision: int = 0
    """Increases with every change of the cluster's metadata."""


class DescribeCluster(Request, tag="describe_cluster"):
    pass


class Cluster(Reply, tag="cluster"):
    cluster: ClusterInfo


class Announce(Request, tag="announce"):
    """A forwarder lives. It says so every few seconds, on a connection that it keeps to each node."""

    name: str
    instance: str
    """Tells forwarders of one name apart, and one that was started again from the one before."""
    address: str = ""
    http: str = ""
    zone: str = ""
    version: str = ""
    calls_webhooks: bool = False
    """Whether it may reach endpoints of webhooks."""


class Announced(Reply, tag="announced"):
    nodes: list[str] = []
    """The addresses of the cluster's live nodes; none if the node is on its own."""
    webhook_callers: list[str] = []
    """The instances of the live forwarders that are to call webhooks, as this node sees it."""


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


class RotatePeerSecret(Request, tag="rotate_peer_secret"):
    """Replace the secret that nodes know each other by; the old one counts for ten more minutes."""


class Decommission(Request, tag="decommission"):
    """Empty a node: what it leads and holds goes to others."""

    node: str
    cancel: bool = False
    """Let it hold replicas again."""
