"""One seed with transactions whose workers have the shipped client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from random import Random
from types import SimpleNamespace
from typing import Any

from quiver.client.consumer.session import start_backoff, streams
from quiver.client.producer import sender
from quiver.cluster.records import PartitionId
from quiver.errors import QuiverError
from quiver.testing.simulator.clients import Producer
from quiver.testing.simulator.loop import Process, VirtualLoop
from quiver.testing.simulator.receives.consumers import STEP_S
from quiver.testing.simulator.receives.edge_node import EdgeNode
from quiver.testing.simulator.sessions.consumers import World
from quiver.testing.simulator.simulation import SimulationSettings
from quiver.testing.simulator.transactions.client_workers import ClientWorker
from quiver.testing.simulator.transactions.simulation import (
    RESULTS,
    WORK,
    WORKERS,
    TransactionSimulation,
)

_SPLITS_MAX = 2


@contextlib.contextmanager
def drawn_from(rng: Random) -> Iterator[None]:
    """Let the client's senders and sessions draw their pauses from the seed."""
    modules: list[Any] = [sender, start_backoff, streams]
    before = [module.random for module in modules]
    for module in modules:
        module.random = SimpleNamespace(Random=lambda: Random(rng.random()))
    try:
        yield
    finally:
        for module, known in zip(modules, before, strict=True):
            module.random = known


class ClientTransactionSimulation(TransactionSimulation):
    """The same with the shipped client, over the shipped connections.

    In every other of these seeds partitions with results are split. In half of them, from the 80th on,
    workers have sessions.
    """

    _node_kind = EdgeNode

    def __init__(self, seed: int, settings: SimulationSettings, loop: VirtualLoop) -> None:
        super().__init__(seed, settings, loop)
        self._network.step_s = STEP_S
        self._chances = Random(f"senders of {seed}")
        self._splits = seed // 32 % 2 == 1
        self._has_sessions = seed // 64 % 2 == 1

    async def run(self) -> None:
        with drawn_from(self._chances):
            await super().run()

    def _start_clients(self) -> list[Producer]:
        producers = super()._start_clients()
        if self._splits:
            self._loop.start(Process("divider"), self._divide())
        return producers

    async def _divide(self) -> None:
        """An operator splits partitions with results, while transactions are open in them."""
        rng, client = self._divider, self._divided_client("divider")
        known = len(self._outputs)
        for _ in range(_SPLITS_MAX):
            await asyncio.sleep(rng.uniform(0.3, self._settings.fault_seconds / _SPLITS_MAX))
            with contextlib.suppress(QuiverError):
                info = await client.topic(RESULTS)
                index = rng.randrange(len(info.partitions))
                await self._split(client, PartitionId(f"{RESULTS}/{index}"), info.layout)
                found = len((await client.topic(RESULTS)).partitions)
                for number in range(known, found):
                    place = PartitionId(f"{RESULTS}/{number}")
                    self._loop.start(Process(f"reader-{number}"), self._follow(number, place))
                known = max(known, found)

    def _start_workers(self) -> None:
        nodes = [node.name for node in self._nodes]
        world = World(nodes, self._loop, self._network, self.history)
        for number in range(WORKERS):
            worker = ClientWorker(
                f"worker-{number}",
                WORK,
                RESULTS,
                world,
                Random(self._rng.random()),
                is_named=number > 0,
                has_session=self._has_sessions,
            )
            self._workers.append(worker)
            self._loop.create_task(worker.run())
