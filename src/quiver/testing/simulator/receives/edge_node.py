"""A simulated node with the shipped edge: clients and other nodes reach it over connections."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

from quiver.broker.broker import Broker
from quiver.cluster.node import ClusterNode
from quiver.config import Limits
from quiver.edge.auth.authority import Authority
from quiver.edge.limits.inflight_budget import InflightBudget
from quiver.edge.native.server import NativeServer
from quiver.edge.services import note_nothing, push_anywhere
from quiver.edge.turns import Turns
from quiver.testing.simulator.broker_node import BrokerNode
from quiver.testing.simulator.loop import Process
from quiver.testing.simulator.receives.dialer import (
    PEER_SECRET,
    ConnectedPeers,
    ConnectionDialer,
)


class _NothingCounted:
    """Metrics that nobody reads."""

    def __getattr__(self, _: str) -> _NothingCounted:
        return self

    def __call__(self, *_: object) -> _NothingCounted:
        return self


class EdgeNode(BrokerNode):
    def _reach_peers(self, process: Process, cluster: ClusterNode) -> Any:
        dialer = ConnectionDialer(
            self._network, self._loop, self.name, process, PEER_SECRET, is_node=True
        )
        chance = Random(f"{self.name} at {self._loop.time()}")
        return ConnectedPeers(
            self.name, dialer, self.clock, lambda: cluster.view.state.nodes, chance
        )

    def _offer_services(self, broker: Broker, cluster: ClusterNode, peers: Any) -> Any:
        services: Any = SimpleNamespace(
            broker=broker,
            clock=self.clock,
            peers=peers,
            member=cluster,
            cluster=None,
            node=self.name,
            started=self.clock.monotonic(),
            turns=Turns(),
            inflight=InflightBudget(64 << 20),
            require_push=push_anywhere,
            note_formats=note_nothing,
            limits=Limits(),
            metrics=_NothingCounted(),
            authority=Authority(self.clock, accepts_peer=PEER_SECRET.__eq__),
        )
        services.native = NativeServer(services)
        self._loop.create_task(services.native._sweep())
        return services
