"""A node as a member of a cluster: its replicas, the other nodes, and what its broker learns of them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from quiver.broker.broker import Broker
from quiver.broker.partition.leadership import Leadership
from quiver.broker.partition.replicated_storage import replicated_storage
from quiver.cluster.metadata.store import Delete, Entry, MetadataStore
from quiver.cluster.node import ClusterListener, ClusterNode, ClusterSettings
from quiver.cluster.records import NodeId, NodeRecord, PartitionId
from quiver.cluster.replica.environment import ClusterEnvironment, LocalEnvironment
from quiver.cluster.replica.manager import LogDefinition
from quiver.config import Address, NodeConfig
from quiver.config.address import advertised
from quiver.edge.auth.credentials import names_host
from quiver.edge.peers.peer_broker import PeerBroker
from quiver.edge.peers.peers import Peers
from quiver.edge.peers.secrets import PeerSecrets
from quiver.formats import stored_versions
from quiver.protocol import PROTOCOL_VERSION
from quiver.version import __version__

_JOIN_TIMEOUT_S = 10.0


class ClusterMembership:
    """``broker`` gives the node's broker, which is opened over this membership. ``join`` comes last."""

    def __init__(
        self,
        config: NodeConfig,
        store: MetadataStore,
        peer_secrets: PeerSecrets,
        broker: Callable[[], Broker],
        local: LocalEnvironment,
        *,
        host: str = "",
    ) -> None:
        """``host`` is the machine that this node is a process of, together with others."""
        clock = local.clock
        self._config = config
        self._broker = broker
        name = NodeId(config.name)
        self._leadership = Leadership(name, clock, self._leads)
        self.peers = Peers(name, peer_secrets, config.security, clock, self._nodes)
        self.node = ClusterNode(
            NodeRecord(
                id=name,
                zone=config.zone,
                host=host,
                version=__version__,
                protocols=(PROTOCOL_VERSION,),
                formats=stored_versions(),
            ),
            config.data,
            ClusterSettings(lease_seconds=config.metadata.lease_s),
            self._logs_of,
            ClusterEnvironment(store=store, network=self.peers, **msgspec.structs.asdict(local)),
            new_disk_name=lambda: secrets.token_hex(16),
            listener=ClusterListener(
                loaded=self._load,
                committed=self._commit,
                leads=self._leadership.began,
                leads_no_more=self._leadership.ended,
                stored=self._leadership.stored,
            ),
            disk_is_full=lambda: self._broker().maintenance.disk_is_full,
        )
        self.storage = replicated_storage(self.node, self._leadership, clock, local.run_blocking)
        self.remote = PeerBroker(self.peers, clock, self._leader_of)

    async def join(self, native: Address, http: Address | None) -> None:
        """Register this node where it can be reached; it leads and follows from then on."""
        session = self.node.membership
        session.record = msgspec.structs.replace(
            session.record,
            address=advertised(self._config.advertise, native),
            http="" if http is None else str(http),
        )
        await self.node.start()
        # Whoever connects from now on finds a node that knows of itself.
        await self.node.view.wait_for(session.revision, _JOIN_TIMEOUT_S)

    def is_node(self, certificate: dict[str, Any]) -> bool:
        """Whether it is the certificate of a node of this cluster: it names where one can be reached."""
        hosts = {one.address.rpartition(":")[0].strip("[]") for one in self._nodes().values()}
        return names_host(certificate, hosts)

    # ------------------------------------------------------------------ what others ask and tell

    def _nodes(self) -> Mapping[NodeId, NodeRecord]:
        return self.node.view.state.nodes

    def _logs_of(self, partition: PartitionId) -> tuple[LogDefinition, ...]:
        return self._broker().listener.logs_of(partition)

    def _leader_of(self, topic: str, index: int) -> str | None:
        return self._broker().topics.known_leader(topic, index)

    def _leads(self, partition: PartitionId) -> None:
        self._broker().listener.leads_now(partition)

    def _load(self, entries: tuple[Entry, ...], revision: int) -> None:
        self._leadership.learn(entries)
        self._broker().listener.reload(entries, revision)

    def _commit(self, changes: tuple[Entry | Delete, ...], revision: int) -> None:
        self._leadership.learn(changes)
        self._broker().listener.apply(changes, revision)
