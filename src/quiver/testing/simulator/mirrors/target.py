"""The cluster that copies: one or two nodes with their own metadata store, and those who use it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from random import Random

from msgspec.structs import replace

from quiver import protocol
from quiver.broker.delivery.lease_token import SECRET
from quiver.broker.mirror.catalog import CLUSTER_ID
from quiver.broker.partition.leadership import DATA, STATE
from quiver.cluster.control.admin import place_of
from quiver.cluster.metadata.secret import SECRET_BYTES
from quiver.cluster.metadata.store import Entry, Put
from quiver.cluster.records import NODES, NodeId, PartitionId
from quiver.errors import QuiverError, TopicNotFound
from quiver.log.partition_log import PartitionLog
from quiver.model.envelope import MARKER
from quiver.model.mirror.settings import MirrorSettings
from quiver.model.subscription import SubscriptionSettings
from quiver.testing.memory_store import MemoryStore
from quiver.testing.simulator import simulation
from quiver.testing.simulator.broker_clients import values_of
from quiver.testing.simulator.broker_simulation import (
    _TOPICS,
    _TRIMMED,
    BrokerSimulation,
    _logical,
)
from quiver.testing.simulator.clients import Producer
from quiver.testing.simulator.consumers import Consumer
from quiver.testing.simulator.faults import Faults
from quiver.testing.simulator.history import Queue
from quiver.testing.simulator.loop import Process, VirtualClock, VirtualLoop
from quiver.testing.simulator.mirrors.history import LOOSE, MirrorHistory, Promotion, last_of
from quiver.testing.simulator.mirrors.node import MirrorNode
from quiver.testing.simulator.network import SimulatedNetwork
from quiver.testing.simulator.node import SimulatedNode
from quiver.testing.simulator.simulation import TOPIC, SimulationSettings, entries_of
from quiver.testing.simulator.store import Outage

MIRROR = "eu"
_COPIED_SECONDS_MAX = 150.0
"""A broken copy asks again after half a minute, and calls to the source wait that long too."""
_DRAIN_SECONDS_MAX = 60.0
_SETTLE_SECONDS_MAX = 30.0
_SAMPLE_SECONDS = 0.1
_PROMOTE_SECONDS = 40.0
_PUBLISHERS_FROM = 3_000_000


class TargetFaults(Faults):
    """Nothing rots: copied state is few large entries, and one node cannot tell rot in the last one from
    a torn write."""

    def _damage_disk_of(self, node: SimulatedNode) -> None:
        self._lose_disk_of(node)

    def _drain(self) -> None:
        """A topic that is made while one of two nodes is to be empty would have a single replica."""
        self._pause()


class TargetCluster(BrokerSimulation):
    """Its clients are there from the start: consumers wait, and publishers are refused."""

    _nodes: list[MirrorNode]  # type: ignore[assignment]
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
            topics=[f"{TOPIC}*", LOOSE],
            with_subscriptions=True,
        )
        await self._insist(
            self._client("operator"), protocol.CreateMirror(name=MIRROR, settings=settings)
        )
        self._loop.create_task(self._sample())
        return sweeper

    def start_users(self, queues: dict[str, SubscriptionSettings]) -> None:
        for queue, settings in queues.items():
            client = self._client(f"{queue}-there")
            consumer = Consumer(client, queue, settings, self._leases, self.history)
            self._consumers.append(consumer)
            self._loop.start(Process(client.name), consumer.run())
        producer = Producer(
            self._client("publisher-there"),
            PartitionId(f"{TOPIC}/0"),
            self._ids,
            self.history,
            pause_s=(0.1, 0.8),
            patience_s=1.0,
        )
        self._producers.append(producer)
        self._loop.start(Process("publisher-there"), producer.run())

    # ------------------------------------------------------------------ an operator

    async def _sample(self) -> None:
        """Write down what the mirror is said to have copied of acknowledgements."""
        while not self.story.promotions:
            now = self._loop.time()
            for node in self._nodes:
                shown = node.broker.mirrors.progress.values() if node.cluster is not None else ()
                for one in shown:
                    lag_s, place = (
                        one.described().state_lag_s,
                        PartitionId(f"{one.topic}/{one.index}"),
                    )
                    if lag_s is not None:
                        known = self.story.counted.get(place, 0.0)
                        self.story.counted[place] = max(known, now - lag_s)
            await asyncio.sleep(_SAMPLE_SECONDS)

    async def promote(self, *, fence: bool, wait_s: float) -> None:
        """Promote all that is copied, until it is answered."""
        client, promotions = self._client("operator"), self.story.promotions
        request = protocol.PromoteTopics(
            topics=[f"{TOPIC}*"], fence=fence, wait_ms=round(wait_s * 1000)
        )
        while True:
            for topic in _TOPICS:
                promotions.setdefault(topic, Promotion(invoked=self._loop.time()))
            try:
                answer = await client.ask_any(request, _PROMOTE_SECONDS)
            except TopicNotFound:
                if self._promoted():
                    return  # an answer was lost
                await client.rest()
            except QuiverError:
                await client.rest()
            else:
                assert isinstance(answer.reply, protocol.TopicsPromoted)
                for done in answer.reply.topics:
                    known = promotions[done.name]
                    known.ended = self._loop.time()
                    known.is_fenced, known.is_complete = done.is_fenced, done.is_complete
                return

    def _promoted(self) -> list[str]:
        """The topics that some node knows to be promoted."""
        return sorted(
            {
                one.name
                for node in self._nodes
                if node.cluster is not None
                for one in node.broker._topic_catalog.topics()
                if one.promoted_from is not None
            }
        )

    # ------------------------------------------------------------------ the end

    async def settle_copy(self) -> None:
        """Wait until everything is copied, and what was promoted is finished by its consumers."""
        await self._wait_until_none(self._starting, _SETTLE_SECONDS_MAX)
        promoted = self._promoted()
        for topic in set(self.story.promotions) - set(promoted):
            del self.story.promotions[topic]
        await self._wait_until_none(self._uncopied, _COPIED_SECONDS_MAX)
        self._note_broken()
        if promoted:
            await self._drain(promoted)
        for consumer in self._consumers:
            consumer.stop()
        for producer in self._producers:
            producer.stopping = True
        await self._wait_until_none(self._unsettled, _SETTLE_SECONDS_MAX)
        await self._collect()
        clocks = [node.clock.extremes_us for node in self._nodes]
        self.history.clocks_s = (
            min(least for least, _ in clocks) / 1e6,
            max(most for _, most in clocks) / 1e6,
        )

    async def _drain(self, promoted: list[str]) -> None:
        catalog = self._nodes[0].broker.leaders.catalog
        self.story.queues_copied = [name for name in self.story.queues if catalog.has(name)]
        for name in self.story.queues_copied:
            queue = self.story.queues[name]
            topics = tuple(topic for topic in queue.topics if topic in promoted)
            self.history.queues[name] = replace(queue, topics=topics)
        self._partitions = [PartitionId(f"{topic}/0") for topic in promoted]
        await self._publish_last()
        for consumer in self._consumers:
            consumer.is_hasty = True
        await self._wait_until_none(self._pending, _DRAIN_SECONDS_MAX)

    async def _starting(self) -> str | None:
        starting = [node.name for node in self._nodes if node.cluster is None]
        return f"{starting} do not start" if starting else None

    async def _uncopied(self) -> str | None:
        """What of the source is not in the copy yet, nor known to have diverged."""
        promotions = self.story.promotions
        broken = self._broken()
        for partition, logs in self.story.logs.items():
            topic, source = partition.rpartition("/")[0], last_of(logs)
            if (topic not in _TOPICS and topic != LOOSE) or topic in promotions:
                continue
            copied = self.story.copied.get(partition)
            if copied is None:
                return f"{partition} is not copied at all"
            copy = last_of(copied)
            if partition in broken:
                if topic != LOOSE or copy.marks == source.marks[: len(copy.marks)]:
                    return f"{partition} is no different, and {broken[partition]}"
            elif topic == LOOSE and copy.marks != source.marks[: len(copy.marks)]:
                return f"{partition} has diverged, and nobody says so"
            elif copy.end != source.end:
                return f"{partition} is copied to {copy.end} of {source.end}"
        return None

    def _broken(self) -> dict[PartitionId, str]:
        return {
            PartitionId(f"{one.topic}/{one.index}"): one.error
            for node in self._nodes
            if node.cluster is not None
            for one in node.broker.mirrors.progress.values()
            if one.is_broken
        }

    def _note_broken(self) -> None:
        self.story.diverged = self._broken()

    async def _collect(self) -> None:
        for partition in await self._records():
            logical, topic = _logical(partition), place_of(partition)[0]
            data, state = self._copies(partition, DATA), self._copies(partition, STATE)
            if topic in _TOPICS and topic != _TRIMMED:
                self.history.copies[logical] = data
            else:
                self.history.states[PartitionId(f"{logical}/{DATA}")] = data
            if topic not in _TOPICS and topic != LOOSE:
                self._read_letters(partition)
            self.history.states[logical] = state

    def _values_of(self, log: PartitionLog, which: int) -> Iterator[tuple[int, int, str]]:
        if which == STATE:
            yield from super()._values_of(log, which)
            return
        for entry in entries_of(log):
            if not entry.flags & MARKER:
                for offset, value in values_of(entry):
                    yield offset, entry.epoch, value


def queues_of(queues: dict[str, Queue]) -> dict[str, Queue]:
    return {name: replace(queue, topics=()) for name, queue in queues.items()}
