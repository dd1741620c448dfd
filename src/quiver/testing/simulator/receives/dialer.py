"""Connections of clients and of nodes to simulated nodes: the shipped ones, over wires."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from quiver.aio import TaskSet
from quiver.client.transport.connection import Connection
from quiver.client.transport.pool import Pool
from quiver.cluster.records import NodeId, NodeRecord
from quiver.edge.native.server import NativeConnection
from quiver.edge.peers.peers import Peers
from quiver.edge.services import NodeServices
from quiver.edge.session import Session
from quiver.model.clock import Clock
from quiver.testing.simulator.loop import Process, VirtualLoop
from quiver.testing.simulator.network import SimulatedNetwork
from quiver.testing.simulator.receives.transport import WireTransport
from quiver.testing.simulator.sessions.channels import Dial
from quiver.testing.simulator.sessions.wires import Side, Wire

PEER_SECRET = "peers"  # noqa: S105 - of simulated nodes
_CONNECT_SECONDS = 2.0
_GREET_SECONDS = 5.0


class Connect(Dial):
    """A request for a connection that carries bytes."""

    def accept(self, name: str, process: Process, services: NodeServices) -> Session | None:
        if self.wire is not None:
            return None
        node = Side(name, process)
        self.wire = Wire(self._network, self._loop, self._client, node)
        server = services.native  # type: ignore[attr-defined]
        connection = NativeConnection(services, server)
        WireTransport(self.wire, node, connection)
        return connection._session


class ConnectionDialer:
    """A ``Dialer`` of one process. ``token``: of a node that connects to its peers.

    ``is_node``: the process is a node, whose end the network tells of.
    """

    def __init__(
        self,
        network: SimulatedNetwork,
        loop: VirtualLoop,
        name: str,
        process: Process,
        token: str | None = None,
        *,
        is_node: bool = False,
    ) -> None:
        self._network = network
        self._loop = loop
        self._name = name
        self._process = process
        self._token = token
        self._is_node = is_node
        self._wires: list[Wire] = []

    async def dial(self, address: str) -> Connection:
        client = Side(self._name, self._process)
        dial = Connect(self._network, self._loop, client)
        await self._network.call(self._name, address, dial, _CONNECT_SECONDS)
        assert dial.wire is not None
        self._wires.append(dial.wire)
        if self._is_node:
            self._network.watch(self._name, dial.wire.client_died)
        connection = Connection(address)
        transport = WireTransport(dial.wire, client, connection)
        if not client.is_open:  # the node has died meanwhile
            transport.broken()
        try:
            await connection.greet(_GREET_SECONDS, self._token)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def close(self) -> None:
        """Nothing is left: each connection has its own wire."""

    def die(self) -> None:
        """The process is gone."""
        for wire in self._wires:
            wire.close(wire.client)


class ConnectedPeers(Peers):
    """The other nodes, over connections as between real nodes."""

    def __init__(
        self,
        node: NodeId,
        dialer: ConnectionDialer,
        clock: Clock,
        nodes: Callable[[], Mapping[NodeId, NodeRecord]],
        chance: Random,
    ) -> None:
        self._node = node
        self._nodes = nodes
        self._ending = TaskSet()
        self._calls = self._copies = Pool(
            dialer, ["(no node to begin with)"], clock=clock, chance=chance
        )

    def _follow_secret(self) -> None:
        """There is one secret, which is never replaced."""
