"""One seed with real brokers whose workers take, publish and acknowledge in transactions.

Results go to a topic of their own, which readers follow all the time. In the end every message was taken by
one committed transaction, and its results are what a reader sees.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from random import Random

from quiver import protocol
from quiver.broker.partition.leadership import DATA, STATE
from quiver.broker.partition.partition import Partition
from quiver.broker.topics.internal_topics import TRANSACTIONS
from quiver.broker.transactions import machine
from quiver.cluster.control.admin import ClusterAdministration, place_of
from quiver.cluster.records import PartitionId
from quiver.errors import QuiverError
from quiver.model.subscription import Backoff, Guarantee, Ordering, SubscriptionSettings
from quiver.model.transaction import TransactionState
from quiver.testing.simulator.broker_clients import BrokerClient
from quiver.testing.simulator.broker_simulation import BrokerSimulation, _logical, _topic
from quiver.testing.simulator.clients import Producer
from quiver.testing.simulator.history import Read, Transaction
from quiver.testing.simulator.loop import Process, VirtualLoop
from quiver.testing.simulator.simulation import TOPIC, SimulationSettings
from quiver.testing.simulator.transactions.client_workers import ClientWorker
from quiver.testing.simulator.transactions.receiving import ResultConsumer
from quiver.testing.simulator.transactions.workers import Worker

RESULTS = "results"
WORK, _LATER_WORK = "work", "later-work"
"""The queue of the inputs, and that of the results."""
PARTITIONS = 2
WORKERS = 3
_PRODUCERS = 2
_TIME_LIMIT_US = 8_000_000
DRAIN_SECONDS_MAX = 120.0
_SETTLE_SECONDS_MAX = 30.0
_FORGOTTEN_SECONDS = 40.0
"""A client that was killed before it sent its commit has nothing anywhere, or partitions ask."""
_ENDS = (TransactionState.COMMITTED, TransactionState.ABORTED)


@contextlib.contextmanager
def short_time_limit() -> Iterator[None]:
    """Let a transaction that nobody told of be open for a few seconds."""
    before, machine.TIMEOUT_US = machine.TIMEOUT_US, _TIME_LIMIT_US
    try:
        yield
    finally:
        machine.TIMEOUT_US = before


class TransactionSimulation(BrokerSimulation):
    def __init__(self, seed: int, settings: SimulationSettings, loop: VirtualLoop) -> None:
        super().__init__(seed, settings, loop)
        self._divides = self._trims = False
        self.history.trimmed = ()
        self.history.queues.clear()
        self._outputs = [PartitionId(f"{RESULTS}/{index}") for index in range(PARTITIONS)]
        self._workers: list[Worker | ClientWorker] = []

    def _choose_queues(self) -> dict[str, SubscriptionSettings]:
        rng = self._rng
        return {
            WORK: SubscriptionSettings(
                topics=[TOPIC],
                ordering=rng.choice((Ordering.NONE, Ordering.KEY)),
                guarantee=rng.choice((Guarantee.AT_LEAST_ONCE, Guarantee.EXACTLY_ONCE)),
                visibility=rng.choice((1.0, 2.0)),
                max_deliveries=0,
                backoff=Backoff(min=0.0),
            )
        }

    async def run(self) -> None:
        with short_time_limit():
            await super().run()

    async def _create_partitions(self) -> None:
        await super()._create_partitions()
        client = self._client("operator")
        await self._insist(client, _topic(RESULTS, PARTITIONS))
        settings = SubscriptionSettings(topics=[RESULTS], visibility=2.0, max_deliveries=0)
        request = protocol.CreateSubscription(
            name=_LATER_WORK, settings=settings, start="earliest", exist_ok=True
        )
        await self._insist(client, request)

    # ------------------------------------------------------------------ clients

    def _start_clients(self) -> list[Producer]:
        for number in range(_PRODUCERS):
            self._produce(f"producer-{number}", self._partitions[number % len(self._partitions)])
        self._start_workers()
        for number, partition in enumerate(self._outputs):
            self._loop.start(Process(f"reader-{number}"), self._follow(number, partition))
        consumer = self._client("consumer")
        results = ResultConsumer(PARTITIONS, consumer, _LATER_WORK, self.history)
        self._loop.start(Process(consumer.name), results.run())
        self._loop.start(Process("operator"), self._move(Random(self._rng.random())))
        return self._producers

    def _start_workers(self) -> None:
        for number in range(WORKERS):
            client = self._client(f"worker-{number}")
            name = client.name if number else None
            worker = Worker(client, WORK, self._outputs, self.history, name)
            self._workers.append(worker)
            self._loop.start(Process(client.name), worker.run())

    async def _follow(self, number: int, partition: PartitionId) -> None:
        """Read a partition with results, as they become visible."""
        await self._read_on(self._client(f"reader-{number}"), number, partition, self.history.seen)

    async def _read_on(
        self, client: BrokerClient, number: int, partition: PartitionId, seen: list[Read]
    ) -> None:
        position = 0
        while True:
            try:
                position = await self._read(client, number, partition, position, seen)
            except QuiverError:
                await client.rest()
            await asyncio.sleep(client.rng.uniform(0.02, 0.2))

    async def _read(
        self,
        client: BrokerClient,
        number: int,
        partition: PartitionId,
        position: int,
        seen: list[Read],
    ) -> int:
        """Where to go on."""
        invoked = self._loop.time()
        found = await client.read(partition, position)
        if found.values:
            seen.append(
                Read(
                    reader=number,
                    partition=partition,
                    invoked=invoked,
                    ended=self._loop.time(),
                    asked=position,
                    epoch=found.epoch,
                    watermark=found.watermark,
                    values=found.values,
                )
            )
        return found.read_to

    async def _move(self, rng: Random) -> None:
        """An operator moves the leads of inputs, results and coordinators about."""
        until = self._loop.time() + self._settings.fault_seconds
        while self._loop.time() < until:
            await asyncio.sleep(rng.uniform(0.5, 4.0))
            node = rng.choice(self._nodes)
            if node.cluster is None:
                continue
            administration = ClusterAdministration(self._store, node.cluster.view)
            coordinators = [PartitionId(f"{TRANSACTIONS}/{index}") for index in range(8)]
            places = [*self._partitions, *self._outputs, *coordinators]
            topic, _, index = rng.choice(places).rpartition("/")
            with contextlib.suppress(QuiverError):
                await administration.transfer(topic, int(index), None)

    # ------------------------------------------------------------------ the end

    async def _settle(self) -> None:
        await self._publish_last()
        for worker in self._workers:
            worker.is_hasty = True
        self.history.drained = await self._wait_until_none(self._pending, DRAIN_SECONDS_MAX)
        for worker in self._workers:
            worker.stop()
        await self._wait_until_none(self._undecided, DRAIN_SECONDS_MAX)
        await self._wait_until_none(self._unread, DRAIN_SECONDS_MAX)
        self.history.drained &= await self._wait_until_none(self._undelivered, DRAIN_SECONDS_MAX)
        await self._wait_until_none(self._unsettled, _SETTLE_SECONDS_MAX)

    async def _pending(self) -> str | None:
        """What workers have not finished."""
        ends: dict[PartitionId, int] = {}
        missing = await self._unfinished(TOPIC, ends)
        if missing is None:
            self.history.drained_to = ends
        return missing

    async def _undelivered(self) -> str | None:
        """Results that the consumer has not finished."""
        return await self._unfinished(RESULTS, {})

    async def _unfinished(self, topic: str, ends: dict[PartitionId, int]) -> str | None:
        """What the queue of a topic has not finished, by the word of who leads."""
        for known, partition in await self._led(topic):
            state = partition.state
            if state is None or not state.is_open or not state.machines:
                return f"{known} is not open to its queue"
            (one,) = state.machines.values()
            if one.view.observed_to < partition.log.next_offset:
                return f"{known} is not looked at as a whole"
            if one.view.pending_count:
                return f"{known} has pending messages: {one.view.depth}"
            ends[known] = partition.log.next_offset
        is_whole = len(ends) == len(await self._partitions_of(topic))
        return None if is_whole else f"some partitions of {topic} are not led"

    async def _partitions_of(self, topic: str) -> list[PartitionId]:
        """All there are of a topic now, as clients know them."""
        records = await self._records()
        return sorted(_logical(known) for known in records if place_of(known)[0] == topic)

    async def _led(self, topic: str) -> list[tuple[PartitionId, Partition]]:
        """The partitions of a topic that are open where they are led, as clients know them."""
        nodes = {node.name: node for node in self._nodes if node.cluster is not None}
        found = []
        for known, record in (await self._records()).items():
            name, number, index = place_of(known)
            node = nodes.get(record.leader)
            if name == topic and node is not None:
                led = dict(node.broker._partitions.opened()).get((number, index))
                found += [] if led is None else [(_logical(known), led)]
        return found

    async def _undecided(self) -> str | None:
        """A transaction of which no coordinator has said how it ended."""
        client = self._client("operator")
        for one in self.history.transactions:
            if one.outcome in _ENDS:
                continue
            try:
                answer = await client.ask_any(protocol.DescribeTransaction(transaction=one.id), 5.0)
            except QuiverError as error:
                return f"nobody says what became of transaction {one.id}: {error.code}"
            assert isinstance(answer.reply, protocol.TransactionInfo)
            one.outcome = str(answer.reply.state)
            if one.outcome == TransactionState.UNKNOWN and self._is_forgotten(one):
                one.outcome = str(TransactionState.ABORTED)
            if one.outcome not in _ENDS:
                return f"transaction {one.id} is {one.outcome}"
        return None

    def _is_forgotten(self, one: Transaction) -> bool:
        """Whether nobody ever told the coordinator of it, or will."""
        is_undone = one.asked != "commit" or one.told == TransactionState.ABORTED
        return is_undone or self._loop.time() > one.asked_at + _FORGOTTEN_SECONDS

    async def _unread(self) -> str | None:
        """Read all results from the beginning; what keeps a reader from their end."""
        return await self._unread_of(RESULTS, self.history.results)

    async def _unread_of(
        self, topic: str, results: dict[PartitionId, tuple[tuple[int, str], ...]]
    ) -> str | None:
        client = self._client("operator")
        for partition in await self._partitions_of(topic):
            values: list[tuple[int, str]] = []
            position, before = 0, -1
            while position > before:
                try:
                    found = await client.read(partition, position)
                except QuiverError as error:
                    return f"{partition} cannot be read: {error.code}"
                values += found.values
                before, position = position, found.read_to
            results[partition] = tuple(values)
            ends = [
                led.log.next_offset for known, led in await self._led(topic) if known == partition
            ]
            if ends != [position]:
                return f"a reader sees {partition} up to {position} of {ends}"
        return None

    async def _collect(self) -> None:
        for partition in await self._records():
            logical = _logical(partition)
            if place_of(partition)[0] == TOPIC:
                self.history.copies[logical] = self._copies(partition, DATA)
            self.history.states[logical] = self._copies(partition, STATE)
