"""One seed: a cluster, its clients, and everything that goes wrong, from beginning to end.

The faults end after a while; from then on the cluster has a bounded time to have a leader with all
replicas in sync everywhere and to take another publish. Then the replicas are read and the history
is checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from itertools import count
from random import Random

import msgspec
import structlog

from quiver.cluster.control.controller import ControllerSettings, new_partition
from quiver.cluster.control.operations import resized
from quiver.cluster.control.placement import Site, place
from quiver.cluster.metadata.store import Entry, Expect, Put
from quiver.cluster.node import ClusterSettings
from quiver.cluster.records import (
    NODES,
    NodeId,
    NodeRecord,
    PartitionId,
    PartitionRecord,
    decode,
    encode,
    partition_key,
)
from quiver.cluster.replica.leader import LeaderSettings
from quiver.cluster.replica.manager import LogDefinition, ReplicaManagerSettings
from quiver.cluster.replica.settings import ReplicaSettings
from quiver.errors import CorruptLog, MetadataConflict
from quiver.log.partition_log import PartitionLog
from quiver.log.settings import LogSettings
from quiver.model.batch import StoredBatch
from quiver.testing.memory_store import MemoryStore
from quiver.testing.simulator.checker import check
from quiver.testing.simulator.clients import Client, Producer, Reader
from quiver.testing.simulator.faults import Faults
from quiver.testing.simulator.history import Copy, History
from quiver.testing.simulator.loop import Process, VirtualClock, VirtualLoop
from quiver.testing.simulator.messages import values_in
from quiver.testing.simulator.network import SimulatedNetwork
from quiver.testing.simulator.node import STATE, SimulatedNode
from quiver.testing.simulator.store import Outage, StoreClient

_SETTLE_SECONDS_MAX = 60.0
_SWEEP_SECONDS = 0.1
_SESSION_SEED = 5
_RECEIVE_SEED = 13
_TRANSACTION_SEED = 9
_ALTER_SEED = 6
"""Of eight seeds, the one in which ``min_in_sync`` changes now and then."""
TOPIC = "t"
REPLICAS = 3

LOG_SETTINGS = LogSettings(
    segment_bytes=16 << 10,
    checkpoint_bytes=8 << 10,
    index_interval_bytes=1 << 10,
    tail_bytes=4 << 10,
    window_bytes=16 << 10,
)
LOGS = (
    LogDefinition("data", LOG_SETTINGS),
    LogDefinition(
        "state",
        msgspec.structs.replace(LOG_SETTINGS, segment_bytes=4 << 10, checkpoint_bytes=4 << 10),
    ),
)
SETTINGS = ClusterSettings(
    lease_seconds=3,
    replica_manager=ReplicaManagerSettings(
        replica=ReplicaSettings(
            leader=LeaderSettings(lag_seconds_max=1.5),
            idle_wait_s=4.0,
            fetch_timeout_s=0.5,
            fetch_bytes=256,
        ),
    ),
    controller=ControllerSettings(transfer_interval_s=3.0, replace_after_s=6.0),
    scrub_interval_s=5.0,
)


class SimulationSettings(msgspec.Struct, frozen=True, kw_only=True):
    nodes: int = 3
    partitions: int = 2
    producers: int = 3
    readers: int = 2
    fault_seconds: float = 15.0
    brokers: bool | None = None
    """Whether the nodes have real brokers, with subscriptions; ``None``: in one seed of four."""
    sessions: bool | None = None
    """Whether consumers of real brokers have sessions; ``None``: in one seed of sixteen, if it is
    left to the seed whether there are brokers."""
    receives: bool | None = None
    """Whether consumers of real brokers receive over the shipped connections; ``None``: in one seed
    of sixteen, if it is left to the seed whether there are brokers."""
    transactions: bool | None = None
    """Whether consumers of real brokers work in transactions; ``None``: in one seed of sixteen, if it
    is left to the seed whether there are brokers."""
    mirrors: bool = False
    """Whether a second cluster copies the topics of the first."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    seed: int
    findings: list[str]
    story: list[tuple[float, str]]
    history: History
    virtual_seconds: float


DEFAULTS = SimulationSettings()


def simulate(seed: int, settings: SimulationSettings = DEFAULTS) -> Outcome:
    """Run one seed. The same seed always gives the same outcome, byte for byte."""
    loop = VirtualLoop()  # type: ignore[abstract] # it needs nothing of what does I/O
    with structlog.testing.capture_logs():
        simulation = _kind(seed, settings)(seed, settings, loop)
        try:
            loop.run(simulation.run())
        finally:
            loop.close()
    history = simulation.history
    history.trouble += loop.errors
    return Outcome(
        seed=seed,
        findings=check(history),
        story=simulation.faults.story,
        history=history,
        virtual_seconds=loop.time(),
    )


def _kind(seed: int, settings: SimulationSettings) -> type[_Simulation]:
    chosen = (settings.brokers, settings.sessions, settings.receives, settings.transactions)
    is_open = all(one is None for one in chosen)
    if settings.mirrors:
        from quiver.testing.simulator.mirrors.simulation import MirrorSimulation  # noqa: PLC0415

        return MirrorSimulation
    if settings.transactions or (is_open and seed % 16 == _TRANSACTION_SEED):
        return _transactions_of(seed)
    if settings.sessions or (is_open and seed % 16 == _SESSION_SEED):
        from quiver.testing.simulator.sessions.simulation import SessionSimulation  # noqa: PLC0415

        return SessionSimulation
    if settings.receives or (is_open and seed % 16 == _RECEIVE_SEED):
        from quiver.testing.simulator.receives.simulation import ReceiveSimulation  # noqa: PLC0415

        return ReceiveSimulation
    if not (seed % 4 == 3 if settings.brokers is None else settings.brokers):
        return _AlteredSimulation if seed % 8 == _ALTER_SEED else _Simulation
    # Brokers come with all that they need, which takes a while to load.
    from quiver.testing.simulator.broker_simulation import BrokerSimulation  # noqa: PLC0415

    return BrokerSimulation


def _transactions_of(seed: int) -> type[_Simulation]:
    """Of 64 seeds: 16 speak the protocol's requests, 16 have a sink too, 32 have the shipped client."""
    from quiver.testing.simulator.transactions.client_simulation import (  # noqa: PLC0415
        ClientTransactionSimulation,
    )
    from quiver.testing.simulator.transactions.simulation import (  # noqa: PLC0415
        TransactionSimulation,
    )
    from quiver.testing.simulator.transactions.sink_simulation import SinkSimulation  # noqa: PLC0415

    if seed // 16 % 2:
        return ClientTransactionSimulation
    return SinkSimulation if seed // 32 % 2 else TransactionSimulation


class _Simulation:
    _history_kind: type[History] = History

    def __init__(self, seed: int, settings: SimulationSettings, loop: VirtualLoop) -> None:
        self.history = self._history_kind()
        self._settings = settings
        self._loop = loop
        self._rng = rng = Random(seed)
        self._network = SimulatedNetwork(loop, Random(rng.random()))
        self._store = MemoryStore(VirtualClock(loop))
        self._outage = Outage()
        # In most seeds only the data is replicated: they are quicker, and the rules are the same.
        self._logs = LOGS[: rng.choice((1, 1, 2))]
        self._nodes = [
            self._node(NodeId(f"n{number}"), f"z{number % 3}")
            for number in range(settings.nodes + rng.choice((0, 0, 1, 2)))
        ]
        self._partitions = [PartitionId(f"{TOPIC}/{index}") for index in range(settings.partitions)]
        self.faults = Faults(
            self._nodes,
            loop=loop,
            network=self._network,
            store=self._store,
            outage=self._outage,
            rng=Random(rng.random()),
        )

    def _node(self, name: NodeId, zone: str) -> SimulatedNode:
        return SimulatedNode(
            NodeRecord(id=name, zone=zone, address=name),
            SETTINGS,
            self._logs,
            loop=self._loop,
            network=self._network,
            store=StoreClient(self._store, self._network, name, self._outage),
            history=self.history,
            rng=Random(self._rng.random()),
        )

    async def run(self) -> None:
        sweeper = self._loop.create_task(self._sweep())
        for node in self._nodes:
            node.start()
        await self._create_partitions()
        producers = self._start_clients()
        await self._make_trouble(self._loop.time() + self._settings.fault_seconds)
        self.faults.heal()
        for producer in producers:
            producer.stopping = True
        await self._settle()
        await self._collect()
        sweeper.cancel()

    async def _make_trouble(self, until: float) -> None:
        await self.faults.run(until)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            if not self._outage.is_on:
                await self._store.sweep()

    async def _create_partitions(self) -> None:
        entries: tuple[Entry, ...] = ()
        while len(entries) < len(self._nodes):
            await asyncio.sleep(0.05)
            entries = (await self._store.list(NODES)).entries
        nodes = [decode(entry.value, NodeRecord) for entry in entries]
        alive = {node.id: node.session for node in nodes}
        placed = place(
            dict.fromkeys(self._partitions, REPLICAS), [Site(node.id, node.zone) for node in nodes]
        )
        for partition, replicas in placed.items():
            record = new_partition(replicas, alive, min_in_sync=2)
            assert record is not None
            await self._store.commit([], [Put(partition_key(partition), encode(record))])

    # ------------------------------------------------------------------ clients

    def _client(self, name: str) -> Client:
        nodes = [node.name for node in self._nodes]
        return Client(name, nodes, self._loop, self._network, Random(self._rng.random()))

    def _start_clients(self) -> list[Producer]:
        ids = count(1)
        producers = []
        for number in range(self._settings.producers):
            producer = Producer(
                self._client(f"producer-{number}"),
                self._partitions[number % len(self._partitions)],
                ids,
                self.history,
                pause_s=self._rng.choice(((0.01, 0.1), (0.05, 0.4))),
                patience_s=self._rng.choice((3.0, 10.0, 60.0)),
            )
            producers.append(producer)
            self._loop.start(Process(f"producer-{number}"), producer.run())
        for number in range(self._settings.readers):
            partition = self._partitions[number % len(self._partitions)]
            reader = Reader(number, self._client(f"reader-{number}"), partition, self.history)
            self._loop.start(Process(f"reader-{number}"), reader.run())
        return producers

    # ------------------------------------------------------------------ the end

    async def _settle(self) -> None:
        """Wait until everything is as it should be; what is not in time is trouble."""
        await self._publish_last()
        await self._wait_until_none(self._unsettled, _SETTLE_SECONDS_MAX)

    async def _publish_last(self) -> None:
        """The cluster takes another publish everywhere."""
        for number, partition in enumerate(self._partitions):
            last = Producer(
                self._client(f"last-{number}"),
                partition,
                count(1_000_000 + number),
                self.history,
                pause_s=(0.0, 0.0),
                patience_s=_SETTLE_SECONDS_MAX,
            )
            if not await last.send_one():
                self.history.trouble.append(f"nothing can be published to {partition}")

    async def _wait_until_none(
        self, missing: Callable[[], Awaitable[str | None]], seconds: float
    ) -> bool:
        """Wait until nothing is missing; what is after so long is trouble."""
        deadline = self._loop.time() + seconds
        while what := await missing():
            if self._loop.time() >= deadline:
                self.history.trouble.append(what)
                return False
            await asyncio.sleep(0.2)
        return True

    async def _unsettled(self) -> str | None:
        """What is not yet as it should be. One lost disk never leaves a partition to an operator."""
        for partition in self._partitions:
            record = await self._record(partition)
            if set(record.in_sync) != set(record.replicas) or record.target:
                return f"{partition} has {record.in_sync} in sync and moves to {record.target}"
            copies = self._copies(partition)
            for copy in copies:
                if copy.watermark < len(copy.values):
                    return f"{partition} on {copy.node} is committed to {copy.watermark} only"
            ends = sorted({len(copy.values) for copy in copies})
            if len(self._logs) > 1:
                states = self._copies(partition, STATE)
                held = {
                    copy.values[-1][0] + 1 if copy.values else copy.watermark for copy in states
                }
                if len(held | {copy.watermark for copy in states}) != 1:
                    return f"{partition} has states that are committed to different ends"
            if len(copies) != len(record.replicas) or len(ends) != 1:
                return f"{partition} has {len(copies)} replicas, of {ends} values"
        return None

    async def _record(self, partition: PartitionId) -> PartitionRecord:
        entry = await self._store.get(partition_key(partition))
        assert entry is not None
        return decode(entry.value, PartitionRecord)

    async def _collect(self) -> None:
        for partition in self._partitions:
            copies = self._copies(partition)
            if copies:
                self.history.copies[partition] = copies
                if len(self._logs) > 1:
                    self.history.states[partition] = self._copies(partition, STATE)

    def _copies(self, partition: PartitionId, log: int = 0) -> list[Copy]:
        copies = []
        for node in self._nodes:
            replica = node.cluster.replica_manager.replica(partition) if node.cluster else None
            if replica is None:
                continue
            held = replica.logs[log]
            try:
                values = tuple(self._values_of(held.log, log))
            except CorruptLog:
                continue  # it has not been found yet
            copies.append(Copy(node=node.name, watermark=held.watermark, values=values))
        return copies

    def _values_of(self, log: PartitionLog, which: int) -> Iterator[tuple[int, int, str]]:
        """Offset, epoch and value of everything in a log."""
        for entry in entries_of(log):
            for offset, value in enumerate(values_in(entry.body), entry.base_offset):
                if offset >= log.start_offset:
                    yield offset, entry.epoch, value


class _AlteredSimulation(_Simulation):
    """An operator asks for two replicas in sync, then for three, and so on."""

    async def _make_trouble(self, until: float) -> None:
        self._loop.create_task(self._alter(until, Random(self._rng.random())))
        await super()._make_trouble(until)

    async def _alter(self, until: float, rng: Random) -> None:
        while self._loop.time() < until:
            await asyncio.sleep(rng.expovariate(1.0))
            key = partition_key(rng.choice(self._partitions))
            entry = await self._store.get(key)
            assert entry is not None
            record = resized(decode(entry.value, PartitionRecord), REPLICAS, rng.choice((2, 3)))
            with suppress(MetadataConflict):
                await self._store.commit([Expect(key, entry.revision)], [Put(key, encode(record))])


def entries_of(log: PartitionLog) -> Iterator[StoredBatch]:
    """Everything in a log, as it is on the disk."""
    offset = log.start_offset
    while offset < log.next_offset:
        for entry in log._log.read_disk(offset, 64 << 10):
            yield entry
            offset = entry.next_offset
