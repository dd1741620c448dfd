"""One seed with real brokers whose consumers receive over the shipped connections, through any node.

Every other seed is calm: no process ends and no link fails, so every lease must reach a program.
"""

from __future__ import annotations

import asyncio
from random import Random

import msgspec

from quiver.testing.simulator.broker_simulation import BrokerSimulation
from quiver.testing.simulator.loop import VirtualLoop
from quiver.testing.simulator.receives.consumers import STEP_S, ReceivingConsumer
from quiver.testing.simulator.receives.edge_node import EdgeNode
from quiver.testing.simulator.sessions.consumers import World
from quiver.testing.simulator.simulation import SimulationSettings

_CONSUMERS = 3
_TIME_SHARE = 0.6
"""Frames and connections take time to run."""


class ReceiveSimulation(BrokerSimulation):
    _node_kind = EdgeNode

    def __init__(self, seed: int, settings: SimulationSettings, loop: VirtualLoop) -> None:
        seconds = settings.fault_seconds * _TIME_SHARE
        super().__init__(seed, msgspec.structs.replace(settings, fault_seconds=seconds), loop)
        self.history.is_calm = seed // 16 % 2 == 0
        self._network.step_s = STEP_S

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
