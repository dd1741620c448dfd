"""One seed with transactions, and beside its workers a sink that writes batches."""

from __future__ import annotations

import asyncio
from random import Random

from quiver.cluster.records import PartitionId
from quiver.testing.simulator.broker_clients import BrokerClient
from quiver.testing.simulator.broker_simulation import _topic
from quiver.testing.simulator.clients import Producer
from quiver.testing.simulator.loop import Process, VirtualLoop
from quiver.testing.simulator.receives.consumers import STEP_S
from quiver.testing.simulator.receives.edge_node import EdgeNode
from quiver.testing.simulator.sessions.consumers import World
from quiver.testing.simulator.simulation import SimulationSettings
from quiver.testing.simulator.transactions.client_simulation import drawn_from
from quiver.testing.simulator.transactions.simulation import (
    DRAIN_SECONDS_MAX,
    PARTITIONS,
    TransactionSimulation,
)
from quiver.testing.simulator.transactions.sink import SINK, Sink


class SinkSimulation(TransactionSimulation):
    """The same, and beside it a sink that writes batches as shared transactions."""

    _node_kind = EdgeNode

    def __init__(self, seed: int, settings: SimulationSettings, loop: VirtualLoop) -> None:
        super().__init__(seed, settings, loop)
        self._network.step_s = STEP_S
        # What is drawn for the sink leaves what is drawn for the rest as it would be.
        self._sinker = Random(f"sink of {seed}")
        self._sinking: asyncio.Task[None] | None = None

    async def run(self) -> None:
        with drawn_from(Random(self._sinker.random())):
            await super().run()

    async def _create_partitions(self) -> None:
        await super()._create_partitions()
        await self._insist(self._sink_client("operator"), _topic(SINK, PARTITIONS))

    def _sink_client(self, name: str) -> BrokerClient:
        nodes, rng = [node.name for node in self._nodes], Random(self._sinker.random())
        return BrokerClient(name, nodes, self._loop, self._network, rng)

    def _start_clients(self) -> list[Producer]:
        producers = super()._start_clients()
        nodes = [node.name for node in self._nodes]
        world = World(nodes, self._loop, self._network, self.history)
        self._sink = Sink(world, Random(self._sinker.random()))
        self._sinking = self._loop.create_task(self._sink.run())
        for number in range(PARTITIONS):
            client, seen = self._sink_client(f"sink-reader-{number}"), self.history.sink_seen
            reading = self._read_on(client, number, PartitionId(f"{SINK}/{number}"), seen)
            self._loop.start(Process(client.name), reading)
        return producers

    async def _settle(self) -> None:
        self._sink.is_hasty = True
        await super()._settle()
        await self._wait_until_none(self._unwritten, DRAIN_SECONDS_MAX)

    async def _unwritten(self) -> str | None:
        """What keeps a reader from the end of the sink's topic."""
        if self._sinking is not None and not self._sinking.done():
            return f"batch {self._sink.noted} of the sink is not committed"
        return await self._unread_of(SINK, self.history.sink_results)
