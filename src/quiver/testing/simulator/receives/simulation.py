"""One seed with real brokers whose consumers receive over the shipped connections, through any node.

Every other seed is calm: no process ends and no link fails, so every lease must reach a program.
"""

from __future__ import annotations

import asyncio
from random import Random

import msgspec

from quiver.cluster.records import NodeId, NodeRecord
from quiver.testing.simulator import simulation
from quiver.testing.simulator.broker_simulation import NODE_SETTINGS, BrokerSimulation
from quiver.testing.simulator.loop import VirtualLoop
from quiver.testing.simulator.receives.consumers import STEP_S, ReceivingConsumer
from quiver.testing.simulator.receives.edge_node import EdgeNode
from quiver.testing.simulator.sessions.consumers import World
from quiver.testing.simulator.simulation import SimulationSettings
from quiver.testing.simulator.store import StoreClient

_CONSUMERS = 3
_TIME_SHARE = 0.6
"""Frames and connections take time to run."""


class ReceiveSimulation(BrokerSimulation):
    def __init__(self, seed: int, settings: SimulationSettings, loop: VirtualLoop) -> None:
        seconds = settings.fault_seconds * _TIME_SHARE
        super().__init__(seed, msgspec.structs.replace(settings, fault_seconds=seconds), loop)
        self.history.is_calm = seed // 16 % 2 == 0
        self._network.step_s = STEP_S

    def _node(self, name: NodeId, zone: str) -> EdgeNode:
        return EdgeNode(
            NodeRecord(id=name, zone=zone, address=name),
            NODE_SETTINGS,
            simulation.LOGS,
            loop=self._loop,
            network=self._network,
            store=StoreClient(self._store, self._network, name, self._outage),
            history=self.history,
            rng=Random(self._rng.random()),
        )

    def _start_consumers(self) -> None:
        nodes = [node.name for node in self._nodes]
        world = World(nodes, self._loop, self._network, self.history)
        for queue, settings in self._queues.items():
            for number in range(_CONSUMERS):
                consumer = ReceivingConsumer(
                    f"{queue}-{number}",
                    queue,
                    settings,
                    world,
                    Random(self._rng.random()),
                    dies=not self.history.is_calm,
                )
                self._consumers.append(consumer)
                self._loop.create_task(consumer.run())

    async def _make_trouble(self, until: float) -> None:
        if self.history.is_calm:
            await asyncio.sleep(until - self._loop.time())
        else:
            await super()._make_trouble(until)
