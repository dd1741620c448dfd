"""The cluster that copies: one or two nodes with their own metadata store, and those who use it."""

from __future__ import annotations

import asyncio
from itertools import count
from random import Random

from msgspec.structs import replace

from quiver import protocol
from quiver.broker.delivery.lease_token import SECRET
from quiver.broker.mirror.catalog import CLUSTER_ID
from quiver.cluster.metadata.secret import SECRET_BYTES
from quiver.cluster.metadata.store import Entry, Put
from quiver.cluster.records import NODES, NodeId, PartitionId
from quiver.model.mirror.settings import MirrorSettings
from quiver.testing.memory_store import MemoryStore
from quiver.testing.simulator import simulation
from quiver.testing.simulator.faults import Faults
from quiver.testing.simulator.history import Queue
from quiver.testing.simulator.loop import VirtualClock, VirtualLoop
from quiver.testing.simulator.mirrors.copying import CopyingCluster
from quiver.testing.simulator.mirrors.history import DEALS, LOOSE, MirrorHistory
from quiver.testing.simulator.mirrors.node import MirrorNode
from quiver.testing.simulator.network import SimulatedNetwork
from quiver.testing.simulator.node import SimulatedNode
from quiver.testing.simulator.simulation import TOPIC, SimulationSettings
from quiver.testing.simulator.store import Outage

MIRROR = "eu"
_PUBLISHERS_FROM = 3_000_000


class TargetFaults(Faults):
    """Nothing rots: copied state is few large entries, and one node cannot tell rot in the last one from
    a torn write."""

    def _damage_disk_of(self, node: SimulatedNode) -> None:
        self._lose_disk_of(node)

    def _drain(self) -> None:
        """A topic that is made while one of two nodes is to be empty would have a single replica."""
        self._pause()


class TargetCluster(CopyingCluster):
    """Its clients are there from the start: consumers wait, and publishers are refused."""

    _node_kind = MirrorNode

    def __init__(
        self,
        rng: Random,
        settings: SimulationSettings,
        loop: VirtualLoop,
        network: SimulatedNetwork,
        history: MirrorHistory,
        sources: list[NodeId],
    ) -> None:
        self.story, self.history = history, history.target
        self._rng, self._settings, self._loop, self._network = rng, settings, loop, network
        self._sources = sources
        self._store, self._outage = MemoryStore(VirtualClock(loop)), Outage()
        self._logs = simulation.LOGS
        self._partitions: list[PartitionId] = []
        self._consumers, self._producers, self._leases = [], [], []
        self._ids = count(_PUBLISHERS_FROM)
        self._nodes = []
        for number in range(rng.choice((1, 2))):
            node = self._node(NodeId(f"m{number}"), f"z{number}")
            assert isinstance(node, MirrorNode)
            node.logs = history.copied
            self._nodes.append(node)
        self.faults = TargetFaults(
            self._nodes,
            loop=loop,
            network=network,
            store=self._store,
            outage=self._outage,
            rng=Random(rng.random()),
            beyond=sources,
        )

    async def start(self) -> asyncio.Task[None]:
        """Start the nodes and have them copy; the task that ends leases."""
        sweeper = self._loop.create_task(self._sweep())
        secrets = [Put(key, self._rng.randbytes(SECRET_BYTES)) for key in (SECRET, CLUSTER_ID)]
        await self._store.commit([], secrets)
        for node in self._nodes:
            node.start()
        registered: tuple[Entry, ...] = ()
        while len(registered) < len(self._nodes):
            await asyncio.sleep(0.05)
            registered = (await self._store.list(NODES)).entries
        settings = MirrorSettings(
            source=f"quiver://{','.join(self._sources)}",
            topics=[f"{TOPIC}*", LOOSE, *([DEALS] if self.has_deals else [])],
            with_subscriptions=True,
        )
        await self._insist(
            self._client("operator"), protocol.CreateMirror(name=MIRROR, settings=settings)
        )
        self._loop.create_task(self._sample())
        return sweeper


def queues_of(queues: dict[str, Queue]) -> dict[str, Queue]:
    return {name: replace(queue, topics=()) for name, queue in queues.items()}
