"""What the edge's parts need of the node they are part of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Protocol

import msgspec

from quiver.broker.broker import Broker
from quiver.cluster.node import ClusterNode
from quiver.config import Limits
from quiver.edge.auth.authority import Authority
from quiver.edge.limits.inflight_budget import InflightBudget
from quiver.edge.live_forwarders import LiveForwarders
from quiver.edge.mirror.runner import MirrorRunner
from quiver.edge.observability import Observability
from quiver.edge.peers.peers import Peers
from quiver.edge.peers.secrets import PeerSecrets
from quiver.edge.turns import Turns
from quiver.formats import Format
from quiver.metrics import NodeMetrics
from quiver.model.clock import Clock
from quiver.protocol import ClusterInfo


class ClusterAdmin(Protocol):
    """What an operator can see of a cluster and have done to it, from any of its nodes.

    Whatever changes something returns once the cluster has agreed on it; carrying it out may take
    longer, and ``describe`` shows how far it is.
    """

    def describe(self) -> ClusterInfo: ...

    async def move(self, topic: str, partition: int, nodes: Sequence[str]) -> None: ...

    async def transfer(self, topic: str, partition: int, node: str | None) -> None: ...

    async def decommission(self, node: str, *, cancel: bool) -> None: ...


async def note_nothing(_needed: Collection[Format]) -> None:
    """There is no data folder to note formats in."""


async def push_anywhere(_url: str | None, _secret: str | None) -> None:
    """Refuse nothing."""


class NodeServices(msgspec.Struct, frozen=True, kw_only=True):
    broker: Broker
    metrics: NodeMetrics
    limits: Limits
    clock: Clock
    node: str
    started: float
    authority: Authority
    observability: Observability
    member: ClusterNode | None = None
    """This node as a member of a cluster, if it is one."""
    peers: Peers | None = None
    peer_secrets: PeerSecrets | None = None
    """What the nodes of the cluster know each other by."""
    require_push: Callable[[str | None, str | None], Awaitable[None]] = push_anywhere
    """Refuses a URL that webhooks may not go to, and the name of a secret that there is none of."""
    note_formats: Callable[[Collection[Format]], Awaitable[None]] = note_nothing
    """Notes that the data folder may have these formats, before it has."""
    mirrors: MirrorRunner
    """The mirrors that run on this node."""
    cluster: ClusterAdmin | None = None
    """What administers the cluster; ``None`` on a node that is on its own."""
    inflight: InflightBudget = msgspec.field(default_factory=lambda: InflightBudget(1 << 62))
    """The memory of unanswered requests."""
    forwarders: LiveForwarders = msgspec.field(default_factory=LiveForwarders)
    """Those that are connected with this node."""
    forwarders_call_webhooks: bool = False
    turns: Turns = msgspec.field(default_factory=Turns)
    """Decide which leader of a subscription is the first to be asked this time."""

    @property
    def node_addresses(self) -> list[str]:
        """The addresses of all live nodes, this one's included; none if it is on its own."""
        return [] if self.peers is None else self.peers.all_addresses
