"""One seed with two clusters: the second copies the topics and subscriptions of the first.

In some seeds the copy stays one, in others it is promoted while all goes on, with or without the source.
One topic of the source may lose what it has confirmed: its copy must notice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from random import Random
from typing import Any

from msgspec.structs import replace

from quiver import protocol
from quiver.broker.mirror.catalog import CLUSTER_ID
from quiver.broker.mirror.partition_copy import Checked, PartitionCopy, Stored
from quiver.cluster.control.admin import place_of
from quiver.cluster.metadata.secret import SECRET_BYTES
from quiver.cluster.metadata.store import Put
from quiver.cluster.records import NodeId, PartitionId, PartitionRecord
from quiver.edge.mirror.partition_puller import PartitionPuller
from quiver.model.ids import Offset
from quiver.model.topic import Durability, TopicSettings
from quiver.testing.simulator.broker_clients import BrokerClient
from quiver.testing.simulator.broker_node import BrokerNode
from quiver.testing.simulator.broker_simulation import BrokerSimulation, _logical
from quiver.testing.simulator.clients import Producer
from quiver.testing.simulator.history import History
from quiver.testing.simulator.loop import Process, VirtualLoop
from quiver.testing.simulator.mirrors.history import LOOSE, Gap, MirrorHistory
from quiver.testing.simulator.mirrors.node import MirrorNode
from quiver.testing.simulator.mirrors.target import TargetCluster, queues_of
from quiver.testing.simulator.simulation import SimulationSettings

_TIME_SHARE = 0.7
"""Two clusters take time to run."""
_PROMOTED_SECONDS_MAX = 120.0
_SETTLE_SECONDS_MAX = 30.0
_LOOSE_FROM = 900_000


@contextmanager
def gaps_noted(gaps: list[Gap]) -> Iterator[None]:
    """Write down every gap that a node tells of."""
    store = PartitionPuller._store

    async def noting(
        self: PartitionPuller,
        target: PartitionCopy,
        gap: tuple[Offset, Offset] | None,
        entries: list[Checked],
    ) -> Stored:
        if gap is not None:
            gaps.append(Gap(self.progress.topic, self.progress.index, *gap))
        return await store(self, target, gap, entries)

    PartitionPuller._store = noting  # type: ignore[method-assign]
    try:
        yield
    finally:
        PartitionPuller._store = store  # type: ignore[method-assign]


class MirrorSimulation(BrokerSimulation):
    history: MirrorHistory
    _nodes: list[MirrorNode]  # type: ignore[assignment]
    _node_kind = MirrorNode
    _history_kind = MirrorHistory

    def __init__(self, seed: int, settings: SimulationSettings, loop: VirtualLoop) -> None:
        seconds = settings.fault_seconds * _TIME_SHARE
        super().__init__(seed, replace(settings, fault_seconds=seconds), loop)
        # What is drawn for the copy leaves what is drawn for everything else as it would be.
        self._mirrorer = rng = Random(f"mirror of {seed}")
        names = [node.name for node in self._nodes]
        self._target = TargetCluster(
            Random(rng.random()), self._settings, loop, self._network, self.history, names
        )
        self._target.faults.story = self.faults.story
        self.history.target.queues = queues_of(self.history.queues)
        self._promotes, self._fences = rng.choice(
            ((False, False), (True, True), (True, True), (True, False))
        )
        self._promoting: asyncio.Task[None] | None = None

    def _node(self, name: NodeId, zone: str) -> BrokerNode:
        node = super()._node(name, zone)
        assert isinstance(node, MirrorNode)
        node.logs, node.is_source = self.history.logs, True
        return node

    async def run(self) -> None:
        with gaps_noted(self.history.gaps):
            await super().run()

    async def _create_partitions(self) -> None:
        await self._store.commit([], [Put(CLUSTER_ID, self._mirrorer.randbytes(SECRET_BYTES))])
        await super()._create_partitions()
        settings = TopicSettings(
            replicas=self._mirrorer.choice((1, 2)),
            min_in_sync=1,
            allow_data_loss=True,
            durability=Durability.OS,
        )
        request = protocol.CreateTopic(name=LOOSE, settings=settings, exist_ok=True)
        await self._insist(self._own_client("operator"), request)
        self._sweeping = await self._target.start()

    def _own_client(self, name: str) -> BrokerClient:
        nodes, rng = [node.name for node in self._nodes], Random(self._mirrorer.random())
        return BrokerClient(name, nodes, self._loop, self._network, rng)

    def _start_clients(self) -> list[Producer]:
        producers = super()._start_clients()
        loose = Producer(
            self._own_client("loose-producer"),
            PartitionId(f"{LOOSE}/0"),
            count(_LOOSE_FROM),
            History(),  # nothing is promised to it
            pause_s=(0.05, 0.3),
            patience_s=3.0,
        )
        producers.append(loose)
        self._loop.start(Process("loose-producer"), loose.run())
        self._target.start_users(self._queues)
        return producers

    async def _make_trouble(self, until: float) -> None:
        rng, seconds = self._mirrorer, self._settings.fault_seconds
        if self._promotes:
            at, wait_s = rng.uniform(0.3, 1.1) * seconds, rng.choice((1.0, 5.0, 20.0))
            self._promoting = self._loop.create_task(self._promote(at, wait_s))
        trouble = self._loop.create_task(self._target.faults.run(until))
        await super()._make_trouble(until)
        await trouble
        self._target.faults.heal()

    async def _promote(self, seconds: float, wait_s: float) -> None:
        await asyncio.sleep(seconds)
        self._say("a promote is asked for")
        await self._target.promote(fence=self._fences, wait_s=wait_s)
        self._say(f"promoted: {self.history.promotions}")

    def _say(self, what: str) -> None:
        self.faults.story.append((self._loop.time(), what))

    # ------------------------------------------------------------------ the end

    async def _settle(self) -> None:
        if self._promoting is not None:
            done, _ = await asyncio.wait([self._promoting], timeout=_PROMOTED_SECONDS_MAX)
            if not done:
                self.history.trouble.append("a promote does not end")
        if self._fences:
            # The source, which perhaps takes and delivers nothing more, has nothing to finish.
            for consumer in self._consumers:
                consumer.stop()
            await self._wait_until_none(self._unsettled, _SETTLE_SECONDS_MAX)
        else:
            await super()._settle()
        await self._target.settle_copy()
        self.history.target.elsewhere = [
            (one.queue, one.partition, one.offset) for one in self.history.deliveries
        ]
        self._sweeping.cancel()

    async def _records(self) -> dict[PartitionId, PartitionRecord]:
        """All but those of which nothing is promised."""
        records = await super()._records()
        return {one: record for one, record in records.items() if place_of(one)[0] != LOOSE}

    async def _collect(self) -> None:
        await super()._collect()
        for partition in await self._records():
            replicas: list[Any] = [
                replica
                for node in self._nodes
                if node.cluster and (replica := node.cluster.replica_manager.replica(partition))
            ]
            self.history.source_starts[_logical(partition)] = max(
                (one.logs[0].log.start_offset for one in replicas), default=0
            )
