"""One seed with real brokers: topics, subscriptions in every ordering and guarantee, and consumers.

After the faults consumers have a bounded time to finish everything that is stored. Snapshots are
small, so that they are taken and what is before them is dropped many times in a run.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count, product
from random import Random
from typing import Any
from zlib import crc32

import msgspec

from quiver import protocol
from quiver.broker.delivery import state_log
from quiver.broker.delivery.lease_token import SECRET
from quiver.broker.partition.leadership import DATA, STATE
from quiver.broker.partition.producers import snapshots
from quiver.broker.partition.replicated_topics import REPLICAS
from quiver.broker.subscription.catalog import covers
from quiver.cluster.control.admin import ClusterAdministration, place_of
from quiver.cluster.metadata.secret import SECRET_BYTES
from quiver.cluster.metadata.store import Entry, Put
from quiver.cluster.records import (
    NODES,
    PARTITIONS,
    NodeId,
    NodeRecord,
    PartitionId,
    PartitionRecord,
    decode,
)
from quiver.cluster.replica.replica import Replica
from quiver.errors import MirrorExists, QuiverError
from quiver.formats import stored_versions
from quiver.log.partition_log import PartitionLog
from quiver.model.envelope import MARKER
from quiver.model.subscription import Backoff, Guarantee, Ordering, SubscriptionSettings
from quiver.model.topic import Retention, TopicSettings, Unread
from quiver.testing.simulator import simulation
from quiver.testing.simulator.broker_clients import BrokerClient, values_of
from quiver.testing.simulator.broker_node import BrokerNode
from quiver.testing.simulator.clients import Producer, Reader
from quiver.testing.simulator.consumers import Consumer
from quiver.testing.simulator.history import Letter, Queue
from quiver.testing.simulator.loop import Process, VirtualLoop
from quiver.testing.simulator.receives.consumers import ReceivingConsumer
from quiver.testing.simulator.routed_producer import RoutedProducer
from quiver.testing.simulator.sessions.consumers import SessionConsumer
from quiver.testing.simulator.simulation import (
    SETTINGS,
    TOPIC,
    SimulationSettings,
    _Simulation,
    entries_of,
)
from quiver.testing.simulator.store import StoreClient

_SETTLE_SECONDS_MAX = 30.0
_QUEUES = 3
_CONSUMERS = 2
_SNAPSHOT_BYTES = 4 << 10
_LATER = f"{TOPIC}2"
"""The name of a topic that is made in the middle of everything."""
_DIVIDED = f"{TOPIC}3"
"""The name of a topic whose partitions are split."""
_TRIMMED = f"{TOPIC}4"
"""The name of a topic whose finished messages are deleted at once, and no others."""
_TRIM_S = 1.0
_SPLITS_MAX = 3
_SPLIT_ATTEMPTS = 10
_FAULT_SHARE = 0.6
"""These seeds take longer, and so have less time for faults."""
_DRAIN_SECONDS_MAX = 60.0
NODE_SETTINGS = msgspec.structs.replace(
    SETTINGS,
    replica_manager=msgspec.structs.replace(
        SETTINGS.replica_manager,
        replica=msgspec.structs.replace(SETTINGS.replica_manager.replica, fetch_bytes=4 << 10),
    ),
)


@contextmanager
def small_snapshots() -> Iterator[None]:
    """Let snapshots be due after a few messages."""
    sizes: list[tuple[Any, str]] = [
        (snapshots, "_SNAPSHOT_BYTES"),
        (state_log, "_SNAPSHOT_BYTES"),
        (state_log, "_HISTORY_BYTES_MAX"),
    ]
    with ExitStack() as stack:
        for module, name in sizes:
            stack.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, _SNAPSHOT_BYTES)
        yield


class BrokerSimulation(_Simulation):
    _nodes: list[BrokerNode]  # type: ignore[assignment]
    _node_kind: type[BrokerNode] = BrokerNode

    def __init__(self, seed: int, settings: SimulationSettings, loop: VirtualLoop) -> None:
        seconds = settings.fault_seconds * _FAULT_SHARE
        super().__init__(seed, msgspec.structs.replace(settings, fault_seconds=seconds), loop)
        self._consumers: list[Consumer | SessionConsumer | ReceivingConsumer] = []
        self._producers: list[Producer] = []
        self._leases: list[bytes] = []
        self._ids = count(1)
        self._routed_ids = count(500_000)
        self._trickled_ids = count(700_000)
        self._divides = seed // 4 % 2 == 1
        """Whether partitions are split: in every other seed, as it takes more time."""
        # What is drawn for splits leaves what is drawn for everything else as it would be.
        self._divider = Random(f"splits of {seed}")
        self._trims = seed // 4 % 3 == 0
        """Whether there is a topic whose messages are deleted: in every third seed."""
        self._trimmer = Random(f"a trimmed topic of {seed}")
        self._queues = self._choose_queues()
        self.history.trimmed = (_TRIMMED,) if self._trims else ()
        for name, queue in self._queues.items():
            self.history.queues[name] = Queue(
                topics=tuple(t for t in _TOPICS if covers(name, queue, t)),
                ordering=queue.ordering,
                guarantee=queue.guarantee,
                max_deliveries=queue.max_deliveries,
            )

    def _choose_queues(self) -> dict[str, SubscriptionSettings]:
        """Three kinds, one of them exactly-once: that promises most."""
        rng, topics = self._rng, [TOPIC, _DIVIDED] if self._divides else [TOPIC]
        topics += [_TRIMMED] if self._trims else []
        kinds = list(product(Ordering, Guarantee))
        strict = (rng.choice(list(Ordering)), Guarantee.EXACTLY_ONCE)
        kinds.remove(strict)
        return {
            f"{ordering}.{guarantee}": SubscriptionSettings(
                topics=[f"{TOPIC}*"] if rng.random() < 0.3 else topics,
                ordering=ordering,
                guarantee=guarantee,
                visibility=rng.choice((1.0, 2.0)),
                max_deliveries=rng.choice((3, 5)),
                backoff=Backoff(min=rng.choice((0.0, 0.1))),
                session_timeout=6.0,
            )
            for ordering, guarantee in [strict, *rng.sample(kinds, _QUEUES - 1)]
        }

    def _node(self, name: NodeId, zone: str) -> BrokerNode:
        return self._node_kind(
            NodeRecord(id=name, zone=zone, address=name, formats=stored_versions()),
            NODE_SETTINGS,
            simulation.LOGS,
            loop=self._loop,
            network=self._network,
            store=StoreClient(self._store, self._network, name, self._outage),
            history=self.history,
            rng=Random(self._rng.random()),
        )

    async def run(self) -> None:
        with small_snapshots():
            await super().run()
        clocks = [node.clock.extremes_us for node in self._nodes]
        self.history.clocks_s = (
            min(least for least, _ in clocks) / 1e6,
            max(most for _, most in clocks) / 1e6,
        )

    async def _create_partitions(self) -> None:
        await self._store.commit([], [Put(SECRET, self._rng.randbytes(SECRET_BYTES))])
        registered: tuple[Entry, ...] = ()
        while len(registered) < len(self._nodes):
            await asyncio.sleep(0.05)
            registered = (await self._store.list(NODES)).entries
        client = self._client("operator")
        await self._insist(client, _topic(TOPIC, self._settings.partitions))
        if self._divides:
            await self._insist(client, _topic(_DIVIDED, 1))
        if self._trims:
            retention = Retention(age=_TRIM_S, unread=Unread.KEEP)
            await self._insist(client, _topic(_TRIMMED, 1, retention=retention))
        for name, settings in self._queues.items():
            request = protocol.CreateSubscription(
                name=name, settings=settings, start="earliest", exist_ok=True
            )
            await self._insist(client, request)

    async def _insist(self, client: BrokerClient, request: protocol.AnyRequest) -> None:
        while True:
            try:
                await client.ask_any(request, timeout_s=5.0)
                return
            except MirrorExists:
                return  # an answer was lost
            except QuiverError:
                await client.rest()

    # ------------------------------------------------------------------ clients

    def _client(self, name: str) -> BrokerClient:
        nodes = [node.name for node in self._nodes]
        return BrokerClient(name, nodes, self._loop, self._network, Random(self._rng.random()))

    def _start_clients(self) -> list[Producer]:
        for number in range(self._settings.producers):
            name = f"producer-{number}"
            self._produce(name, self._partitions[number % len(self._partitions)], number == 2)
        for number in range(self._settings.readers):
            partition = self._partitions[number % len(self._partitions)]
            reader = Reader(number, self._client(f"reader-{number}"), partition, self.history)
            self._loop.start(Process(f"reader-{number}"), reader.run())
        self._start_consumers()
        self._loop.start(Process("operator"), self._operate(Random(self._rng.random())))
        if self._divides:
            for number in range(2):
                self._route(f"routed-{number}", by_id=number == 1)
            self._loop.start(Process("divider"), self._divide())
        if self._trims:
            self._trickle()
        return self._producers

    def _trickle(self) -> None:
        """Publishes with pauses, so that all that is stored is old now and then."""
        nodes, rng = [node.name for node in self._nodes], self._trimmer
        for number in range(2):
            name = f"trickle-{number}"
            client = BrokerClient(name, nodes, self._loop, self._network, Random(rng.random()))
            producer = Producer(
                client,
                PartitionId(f"{_TRIMMED}/0"),
                self._trickled_ids,
                self.history,
                pause_s=(0.5, 3.0),
                patience_s=rng.choice((3.0, 10.0, 60.0)),
            )
            self._producers.append(producer)
            self._loop.start(Process(name), producer.run())

    def _start_consumers(self) -> None:
        for queue, settings in self._queues.items():
            for number in range(_CONSUMERS):
                client = self._client(f"{queue}-{number}")
                consumer = Consumer(client, queue, settings, self._leases, self.history)
                self._consumers.append(consumer)
                self._loop.start(Process(client.name), consumer.run())

    def _route(self, name: str, *, by_id: bool) -> None:
        producer = RoutedProducer(
            self._divided_client(name),
            PartitionId(f"{_DIVIDED}/0"),
            self._routed_ids,
            self.history,
            pause_s=(0.05, 0.3),
            patience_s=self._divider.choice((3.0, 10.0, 60.0)),
            by_id=by_id,
        )
        self._producers.append(producer)
        self._loop.start(Process(name), producer.run())

    def _divided_client(self, name: str) -> BrokerClient:
        nodes = [node.name for node in self._nodes]
        return BrokerClient(name, nodes, self._loop, self._network, Random(self._divider.random()))

    async def _divide(self) -> None:
        """An operator splits partitions, and moves the leads of what comes of it."""
        rng, client = self._divider, self._divided_client("divider")
        for _ in range(_SPLITS_MAX):
            await asyncio.sleep(rng.uniform(0.3, self._settings.fault_seconds / _SPLITS_MAX))
            with contextlib.suppress(QuiverError):
                info = await client.topic(_DIVIDED)
                index = rng.randrange(len(info.partitions))
                await self._split(client, PartitionId(f"{_DIVIDED}/{index}"), info.layout)
                node = rng.choice(self._nodes)
                if node.cluster is not None and rng.random() < 0.5:
                    administration = ClusterAdministration(self._store, node.cluster.view)
                    await administration.transfer(_DIVIDED, index, None)

    async def _split(self, client: BrokerClient, partition: PartitionId, layout: int) -> None:
        """Ask for it a few times, if need be; it is made once."""
        for _ in range(_SPLIT_ATTEMPTS):
            try:
                await client.split(partition, layout)
                return
            except QuiverError:
                await client.rest()

    def _produce(self, name: str, partition: PartitionId, by_id: bool = False) -> None:
        producer = Producer(
            self._client(name),
            partition,
            self._ids,
            self.history,
            pause_s=self._rng.choice(((0.05, 0.2), (0.1, 0.6))),
            patience_s=self._rng.choice((3.0, 10.0, 60.0)),
            by_id=by_id,
        )
        self._producers.append(producer)
        self._loop.start(Process(name), producer.run())

    async def _operate(self, rng: Random) -> None:
        """An operator makes another topic, and moves partitions about, while all goes on."""
        until = self._loop.time() + self._settings.fault_seconds
        await asyncio.sleep(rng.uniform(0.5, self._settings.fault_seconds / 2))
        await self._insist(self._client("operator"), _topic(_LATER, 1))
        if self._loop.time() >= until:
            return
        self._partitions.append(PartitionId(f"{_LATER}/0"))
        self._produce("producer-later", self._partitions[-1])
        while self._loop.time() < until:
            await asyncio.sleep(rng.uniform(0.5, 4.0))
            node = rng.choice(self._nodes)
            if node.cluster is None:
                continue
            administration = ClusterAdministration(self._store, node.cluster.view)
            topic, _, index = rng.choice(self._partitions).rpartition("/")
            with contextlib.suppress(QuiverError):
                if len(self._nodes) > REPLICAS and rng.random() < 0.5:
                    names = [one.name for one in rng.sample(self._nodes, REPLICAS)]
                    await administration.move(topic, int(index), names)
                else:
                    await administration.transfer(topic, int(index), None)

    # ------------------------------------------------------------------ the end

    async def _settle(self) -> None:
        await self._publish_last()
        for consumer in self._consumers:
            consumer.is_hasty = True
        self.history.drained = await self._wait_until_none(self._pending, _DRAIN_SECONDS_MAX)
        for consumer in self._consumers:
            consumer.stop()
        await self._wait_until_none(self._unsettled, _SETTLE_SECONDS_MAX)

    async def _records(self) -> dict[PartitionId, PartitionRecord]:
        entries = (await self._store.list(PARTITIONS)).entries
        return {
            PartitionId(entry.key.removeprefix(PARTITIONS)): decode(entry.value, PartitionRecord)
            for entry in entries
        }

    async def _record(self, partition: PartitionId) -> PartitionRecord:
        return next(
            record
            for known, record in (await self._records()).items()
            if _logical(known) == partition
        )

    async def _pending(self) -> str | None:
        """What some subscription has not finished, by the word of who leads."""
        nodes = {node.name: node for node in self._nodes if node.cluster is not None}
        ends: dict[PartitionId, int] = {}
        for known, record in (await self._records()).items():
            topic, number, index = place_of(known)
            for name, queue in self.history.queues.items():
                if topic not in queue.topics:
                    continue
                node = nodes.get(record.leader)
                opened = {} if node is None else dict(node.broker._partitions.opened())
                led = opened.get((number, index))
                if node is None or led is None or led.state is None:
                    return f"{known} is not open to {name}"
                machine = led.state.machines.get(node.broker.leaders.catalog.get(name).number)
                if machine is None or machine.view.observed_to < led.log.next_offset:
                    return f"{name} has not looked at all of {known}"
                if machine.view.pending_count:
                    return f"{name} has pending messages of {known}: {machine.view.depth}"
                ends[_logical(known)] = led.log.next_offset
        self.history.drained_to = ends
        return None

    async def _unsettled(self) -> str | None:
        for partition, record in (await self._records()).items():
            if set(record.in_sync) != set(record.replicas) or record.target:
                return f"{partition} has {record.in_sync} in sync and moves to {record.target}"
            replicas = self._replicas(partition)
            for log in (DATA, STATE):
                ends = {one.logs[log].log.next_offset for one in replicas}
                ends |= {one.logs[log].watermark for one in replicas}
                if len(replicas) != len(record.replicas) or len(ends) != 1:
                    return f"{partition} has {len(replicas)} replicas with ends at {sorted(ends)}"
        return None

    def _replicas(self, partition: PartitionId) -> list[Replica]:
        """Those on nodes that run."""
        return [
            replica
            for node in self._nodes
            if node.cluster and (replica := node.cluster.replica_manager.replica(partition))
        ]

    async def starts(self) -> dict[PartitionId, int]:
        """Where each partition begins on the replica that has the least of it."""
        return {
            _logical(partition): max(
                (one.logs[DATA].log.start_offset for one in self._replicas(partition)), default=0
            )
            for partition in await self._records()
        }

    async def _collect(self) -> None:
        for partition in await self._records():
            logical = _logical(partition)
            topic = place_of(partition)[0]
            data, state = self._copies(partition, DATA), self._copies(partition, STATE)
            if topic == _TRIMMED:
                self.history.states[PartitionId(f"{logical}/{DATA}")] = data
            elif topic in _TOPICS:
                self.history.copies[logical] = data
            else:
                self.history.states[PartitionId(f"{logical}/{DATA}")] = data
                self._read_letters(partition)
            self.history.states[logical] = state

    def _read_letters(self, partition: PartitionId) -> None:
        self.history.letters += [letter for _, letter in self._letters_in(partition)]

    def _letters_in(self, partition: PartitionId) -> Iterator[tuple[int, Letter]]:
        """Dead letters, with their own offsets."""
        for entry in entries_of(self._replicas(partition)[0].logs[DATA].log):
            rows = entry.record_batch().select(_ORIGIN).to_pylist()
            for offset, row in enumerate(rows, entry.base_offset):
                place = PartitionId(f"{row['origin_topic']}/{row['origin_partition']}")
                letter = Letter(
                    queue=row["origin_subscription"], partition=place, offset=row["origin_offset"]
                )
                yield offset, letter

    def _values_of(self, log: PartitionLog, which: int) -> Iterator[tuple[int, int, str]]:
        for entry in entries_of(log):
            if which == STATE:
                yield entry.base_offset, entry.epoch, f"{crc32(entry.body):08x}"
                continue
            for offset, value in () if entry.flags & MARKER else values_of(entry):
                yield offset, entry.epoch, value


_ORIGIN = ["origin_topic", "origin_partition", "origin_offset", "origin_subscription"]


_TOPICS = (TOPIC, _LATER, _DIVIDED, _TRIMMED)


def _topic(name: str, partitions: int, **settings: Any) -> protocol.CreateTopic:
    chosen = TopicSettings(partitions=partitions, replicas=REPLICAS, **settings)
    return protocol.CreateTopic(name=name, settings=chosen, exist_ok=True)


def _logical(partition: PartitionId) -> PartitionId:
    """A partition as clients know it."""
    topic, _, index = place_of(partition)
    return PartitionId(f"{topic}/{index}")
