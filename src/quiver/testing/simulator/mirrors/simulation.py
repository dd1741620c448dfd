"""One seed with two clusters: the second copies the topics and subscriptions of the first.

In some seeds the copy stays one, in others it is promoted while all goes on, with or without the source.
One topic of the source may lose what it has confirmed: its copy must notice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from itertools import count
from random import Random

from msgspec.structs import replace

from quiver import protocol
from quiver.broker.mirror.catalog import CLUSTER_ID
from quiver.broker.mirror.partition_copy import Checked, PartitionCopy, Stored
from quiver.cluster.control.admin import place_of
from quiver.cluster.metadata.secret import SECRET_BYTES
from quiver.cluster.metadata.store import Put
from quiver.cluster.records import NodeId, PartitionId, PartitionRecord
from quiver.edge.mirror.partition_puller import PartitionPuller
from quiver.errors import QuiverError
from quiver.model.ids import Offset
from quiver.model.topic import Durability, TopicSettings
from quiver.testing.simulator.broker_clients import BrokerClient
from quiver.testing.simulator.broker_node import BrokerNode
from quiver.testing.simulator.broker_simulation import BrokerSimulation, _topic
from quiver.testing.simulator.clients import Producer
from quiver.testing.simulator.history import History
from quiver.testing.simulator.loop import Process, VirtualLoop
from quiver.testing.simulator.mirrors.deals import PARTITIONS, DealWriter
from quiver.testing.simulator.mirrors.former_source import FormerSource
from quiver.testing.simulator.mirrors.history import (
    DEAD_LETTERS,
    DEALS,
    LOOSE,
    Gap,
    MirrorHistory,
)
from quiver.testing.simulator.mirrors.node import MirrorNode
from quiver.testing.simulator.mirrors.target import TargetCluster, queues_of
from quiver.testing.simulator.mirrors.turns import Turns
from quiver.testing.simulator.simulation import SimulationSettings
from quiver.testing.simulator.transactions.simulation import short_time_limit

_TIME_SHARE = 0.7
"""Two clusters take time to run."""
_PROMOTED_SECONDS_MAX = 120.0
_SETTLE_SECONDS_MAX = 30.0
_RETURNED_SECONDS_MAX = 180.0
_LOOSE_FROM = 900_000
_FENCED_SHARE, _UNFENCED_SHARE = 0.3, 0.9
"""Of the seeds in which the copy is promoted: those in which the old source follows it then."""
_DEALS_SHARE = 0.5
"""Of these: those in which there are transactions too."""
_FAILOVER_SHARE, _AWAY_SECONDS = 0.5, 4.0
"""Of these: those in which each node is away in the end, for longer than a lease."""


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
        self._returner = Random(f"failback of {seed}")
        self._fails_back = self._promotes and self._returner.random() < (
            _FENCED_SHARE if self._fences else _UNFENCED_SHARE
        )
        self._target.has_deals = self._fails_back and self._returner.random() < _DEALS_SHARE
        self._deal_writers: list[DealWriter] = []
        self._former: FormerSource | None = None
        self._returning: asyncio.Task[None] | None = None

    def _node(self, name: NodeId, zone: str) -> BrokerNode:
        node = super()._node(name, zone)
        assert isinstance(node, MirrorNode)
        node.logs, node.is_source = self.history.logs, True
        return node

    async def run(self) -> None:
        with gaps_noted(self.history.gaps), short_time_limit():
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
        if self._target.has_deals:
            await self._insist(self._returning_client("operator"), _topic(DEALS, PARTITIONS))
        self._sweeping = await self._target.start()

    def _own_client(self, name: str) -> BrokerClient:
        nodes, rng = [node.name for node in self._nodes], Random(self._mirrorer.random())
        return BrokerClient(name, nodes, self._loop, self._network, rng)

    def _returning_client(self, name: str) -> BrokerClient:
        nodes, rng = [node.name for node in self._nodes], Random(self._returner.random())
        return BrokerClient(name, nodes, self._loop, self._network, rng)

    def _start_deals(self, client: BrokerClient) -> None:
        writer = DealWriter(client, self.history.deals)
        self._deal_writers.append(writer)
        self._loop.start(Process(client.name), writer.run())

    def _start_clients(self) -> list[Producer]:
        producers = super()._start_clients()
        if self._target.has_deals:
            for number in range(2):
                self._start_deals(self._returning_client(f"here-{number}"))
            self._start_deals(self._target._client("there-0"))
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
        if self._fails_back:
            await self._return()
        self._target.faults.heal()

    async def _promote(self, seconds: float, wait_s: float) -> None:
        await asyncio.sleep(seconds)
        self._say("a promote is asked for")
        if self._fails_back and not self._fences and self._returner.random() < 0.5:
            self._cut_clusters()
        await self._target.promote(fence=self._fences, wait_s=wait_s)
        self._say(f"promoted: {self.history.promotions}")

    def _cut_clusters(self) -> None:
        """Nothing gets from one cluster to the other for a while."""
        seconds = self._returner.uniform(1.0, 6.0)
        self._say(f"the clusters are cut off from each other for {seconds:.1f} s")
        for one in self._nodes:
            for other in self._target._nodes:
                for way in ((one.name, other.name), (other.name, one.name)):
                    self._network.cut(*way)
                    self._loop.call_later(seconds, self._network.mend, *way)

    # ------------------------------------------------------------------ failback

    async def _return(self) -> None:
        """Faults go on while the source becomes a copy, and perhaps is promoted again."""
        rng = self._returner
        until = self._loop.time() + rng.uniform(3.0, 9.0)
        chance = Random(rng.random())
        self._former = FormerSource(
            self,
            self._target,
            Random(rng.random()),
            lambda: self._strike_a_failback(chance, until),
        )
        self._returning = self._loop.create_task(self._fail_back(self._former))
        trouble = self._loop.create_task(self._target.faults.run(until))
        await self.faults.run(until)
        await trouble

    def _strike_a_failback(self, rng: Random, until: float) -> None:
        """A failback is further: hurt a node of the source right then, now and then."""
        if self._loop.time() >= until or rng.random() < 0.5:
            return
        node, other = rng.sample(self._nodes, 2)
        strikes: list[Callable[[], None]] = [
            lambda: self.faults._pause_one(node),
            lambda: self.faults._crash_one(node),
            lambda: self.faults._part(node.name, other.name),
        ]
        rng.choice(strikes)()

    async def _fail_back(self, former: FormerSource) -> None:
        rng, promoting = self._returner, self._promoting
        promotes, fences = rng.random() < 0.5, rng.random() < 0.6
        assert promoting is not None
        await asyncio.wait([promoting])
        await asyncio.sleep(rng.choice((0.0, 2.0)) * rng.random())
        self._say("a failback is asked for")
        await former.fail_back()
        if not await self._wait_until_none(former.unfinished, _RETURNED_SECONDS_MAX):
            return
        self._say(f"the source is a copy: {self.history.failbacks}")
        for producer in self._producers:
            producer.stopping = producer.is_gone = True
        for consumer in self._consumers:
            consumer.stop()
        former.start_users(self._queues)
        if self._target.has_deals:
            self._start_deals(self._returning_client("back-0"))
        await asyncio.sleep(rng.uniform(0.0, 4.0))
        if promotes and former.is_copy_of_any:
            self._say("a promote back is asked for")
            await former.promote(fence=fences, wait_s=rng.choice((1.0, 5.0, 20.0)))
            self._say(f"promoted back: {former.story.promotions}")

    def _say(self, what: str) -> None:
        self.faults.story.append((self._loop.time(), what))

    # ------------------------------------------------------------------ the end

    async def _settle(self) -> None:
        if self._promoting is not None:
            done, _ = await asyncio.wait([self._promoting], timeout=_PROMOTED_SECONDS_MAX)
            if not done:
                self.history.trouble.append("a promote does not end")
        if self._former is not None:
            await self._settle_both(self._former)
            return
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

    async def _settle_both(self, former: FormerSource) -> None:
        assert self._returning is not None
        limit = _RETURNED_SECONDS_MAX + _PROMOTED_SECONDS_MAX
        done, _ = await asyncio.wait([self._returning], timeout=limit)
        if not done:
            self.history.trouble.append("a promote back does not end")
        for writer in self._deal_writers:
            writer.stopping = True
        is_fenced = any(one.is_fenced for one in former.story.promotions.values())
        await self._target.settle_copy(drains=not is_fenced)
        self.history.target.elsewhere = [
            (one.queue, one.partition, one.offset) for one in self.history.deliveries
        ]
        if self._returner.random() < _FAILOVER_SHARE:
            await self._fail_over()
        await former.settle_copy()
        if self._target.has_deals:
            await self._wait_until_none(self._unread_deals, _SETTLE_SECONDS_MAX)
        await self._target.collect_again()
        # Delivery state came from the other cluster meanwhile.
        await self._wait_until_none(self._unsettled, _SETTLE_SECONDS_MAX)
        self._sweeping.cancel()

    async def _unread_deals(self) -> str | None:
        """Read what is visible of the transactions; what keeps a reader from it."""
        assert self._former is not None
        try:
            self.history.deals_visible = await self._former.visible_deals()
        except QuiverError as error:
            return f"{DEALS} cannot be read: {error.message}"
        return None

    async def _fail_over(self) -> None:
        """Every node of the old source is away for a while, so that others lead its partitions."""
        for node in self._nodes:
            self._say(f"{node.name} is killed, for others to lead")
            node.kill()
            await asyncio.sleep(_AWAY_SECONDS)
            if node.process.is_dead:
                node.start()
            await self._wait_until_none(self._unsettled, _SETTLE_SECONDS_MAX)

    async def _records(self) -> dict[PartitionId, PartitionRecord]:
        """All but those of which nothing is promised."""
        records = await super()._records()
        return {one: record for one, record in records.items() if place_of(one)[0] != LOOSE}

    async def _collect(self) -> None:
        await super()._collect()
        self.history.source_starts = await self.starts()
        if self._former is not None:
            self._former.end_eras()
            if self._former.story.promotions and not self.history.trouble:
                await self._take_turns(self._former)

    async def _take_turns(self, former: FormerSource) -> None:
        """The clusters go on. What is told of them so far is not touched any more."""
        self.history = deepcopy(self.history)
        turns = Turns(
            former, self._target, Random(f"turns of {self._returner.random()}"), self._say
        )
        await turns.run()
        self.history.turns, self.history.trouble = turns.done, turns.trouble

    def _read_letters(self, partition: PartitionId) -> None:
        if place_of(partition)[0].endswith(DEAD_LETTERS):
            super()._read_letters(partition)
