"""Workers with the shipped client: its transactions, over the shipped connections.

A worker lives again and again. Some of its lives are killed, and some are paused while the next one begins
under their name. A life that is fenced ends: also the next one, if the paused one comes back and begins anew.
"""

from __future__ import annotations

import asyncio
import contextlib
from random import Random

from quiver.client.async_client import AsyncClient
from quiver.client.consumer.consumer import AsyncConsumer
from quiver.client.consumer.received import ReceivedMessage
from quiver.client.transaction.transaction import AsyncTransaction
from quiver.cluster.records import PartitionId
from quiver.errors import QuiverError, TransactionFenced
from quiver.model.transaction import TransactionState
from quiver.testing.simulator.history import Transaction
from quiver.testing.simulator.loop import Process, VirtualClock
from quiver.testing.simulator.receives.dialer import ConnectionDialer
from quiver.testing.simulator.sessions.consumers import World

_CALL_SECONDS = 4.0
_TIMEOUTS_S = (3.0, 8.0)


class ClientWorker:
    """``is_hasty``: it only wants to finish."""

    def __init__(
        self,
        name: str,
        queue: str,
        results: str,
        world: World,
        rng: Random,
        *,
        is_named: bool,
        has_session: bool = False,
    ) -> None:
        """``has_session``: it takes its messages from a consumer."""
        self.is_hasty = False
        self.stopping = False
        self.queue = queue
        self.results = results
        self.world = world
        self.is_named = is_named
        self.has_session = has_session
        self.name = name
        self._rng = rng

    def stop(self) -> None:
        self.stopping = True

    async def run(self) -> None:
        loop = self.world.loop
        life = WorkerLife(self, Random(self._rng.random()))
        while not self.stopping:
            await asyncio.sleep(self._rng.uniform(0.5, 4.0))
            how = 1.0 if self.is_hasty else self._rng.random()
            if how < 0.5:
                continue
            if how < 0.6:
                life.kill()
            elif how < 0.75:
                loop.pause(life.process)
                before, life = life, WorkerLife(self, Random(self._rng.random()), before=life)
                loop.call_later(self._rng.uniform(0.5, 5.0), before.resume)
                continue
            if life.is_dead:
                life = WorkerLife(self, Random(self._rng.random()))
        life.stop()


class WorkerLife:
    """One process with one client. ``before`` is another that has the same name, and is paused."""

    def __init__(
        self, owner: ClientWorker, rng: Random, *, before: WorkerLife | None = None
    ) -> None:
        self.process = Process(owner.name)
        self.is_dead = False
        self._owner = owner
        self._rng = rng
        self._before = before
        self._open: Transaction | None = None
        self._acked: set[str] = set()
        """The messages that the last transaction has acknowledged."""
        self._is_last = False
        loop, network = owner.world.loop, owner.world.network
        self._loop = loop
        self._dialer = ConnectionDialer(network, loop, owner.name, self.process)
        nodes = rng.sample(owner.world.nodes, len(owner.world.nodes))
        self._client = AsyncClient(
            "quiver://" + ",".join(nodes),
            timeout=_CALL_SECONDS,
            dialer=self._dialer,
            clock=VirtualClock(loop),
        )
        for cluster in (self._client._cluster, self._client._read_cluster):
            cluster.pool._bootstrap = list(nodes)  # a simulated address has no port
            cluster._chance = cluster.pool._chance = Random(rng.random())
        loop.start(self.process, self._run())

    def kill(self) -> None:
        self.is_dead = True
        self._loop.kill(self.process)
        self._dialer.die()

    def resume(self) -> None:
        """It comes back, does what it was about to do, and ends."""
        self._is_last = True
        self._loop.resume(self.process)

    def stop(self) -> None:
        self._is_last = True

    def fence(self) -> None:
        """Another life has its name."""
        if self._open is not None and self._owner.is_named:
            self._open.fenced = min(self._open.fenced, self._loop.time())

    @property
    def _goes_on(self) -> bool:
        return not self._is_last and not self._owner.stopping

    async def _run(self) -> None:
        if self._owner.has_session:
            await self._consume()
        while self._goes_on:
            try:
                messages = await self._client.receive(
                    self._owner.queue,
                    self._rng.choice((1, 3, 8)),
                    wait=0.3,
                    consumer=self._owner.name,
                )
            except QuiverError:
                await asyncio.sleep(self._rng.uniform(0.05, 0.3))
                continue
            if messages and not self._owner.stopping:
                await self._transact(messages)
        await self._client.close()

    async def _consume(self) -> None:
        """Work on the messages of a session, and begin another whenever one is lost."""
        owner, rng = self._owner, self._rng
        while self._goes_on:
            prefetch = rng.choice((None, 1, 5, 20))
            try:
                async with self._client.consumer(
                    owner.queue, prefetch=prefetch, consumer=owner.name
                ) as consumer:
                    while self._goes_on:
                        messages = await self._taken(consumer)
                        if messages and not owner.stopping:
                            await self._transact(messages)
                            self._give_back(messages)
            except QuiverError:
                await asyncio.sleep(rng.uniform(0.05, 0.3))

    async def _taken(self, consumer: AsyncConsumer) -> list[ReceivedMessage]:
        """A few messages, as far as they are at hand."""
        messages: list[ReceivedMessage] = []
        with contextlib.suppress(TimeoutError):
            for _ in range(self._rng.choice((1, 3, 8))):
                async with asyncio.timeout(0.05 if messages else 0.3):
                    messages.append(await anext(consumer))
        return messages

    def _give_back(self, messages: list[ReceivedMessage]) -> None:
        """Return to the queue what no transaction has taken."""
        for message in messages:
            if message.id not in self._acked:
                message.nack(delay=0)
        self._acked.clear()

    async def _transact(self, messages: list[ReceivedMessage]) -> None:
        rng, owner = self._rng, self._owner
        name = owner.name if owner.is_named else None
        timeout = 60.0 if rng.random() < 0.7 else rng.choice(_TIMEOUTS_S)
        began = self._loop.time()
        transaction = self._client.transaction(name, timeout=timeout)
        try:
            await transaction.begin()
        except TransactionFenced:
            self._is_last = self.is_dead = True  # as its error asks; a new life takes its place
            return
        except QuiverError:
            return
        if self._before is not None:
            self._before.fence()
            self._before = None
        if owner.stopping:
            return  # it was paused meanwhile: nobody asks any more how its transactions end
        one = Transaction(id=transaction.id, worker=owner.name, began=began)
        owner.world.history.transactions.append(one)
        self._open = one
        try:
            await self._fill(transaction, one, messages)
            if not owner.is_hasty and rng.random() < 0.1:
                one.asked, one.asked_at = "abort", self._loop.time()
                await transaction.abort()
            else:
                one.asked, one.asked_at = "commit", self._loop.time()
                await transaction.commit()
        except QuiverError:  # its state says what became of it
            if owner.has_session:  # the session keeps its messages until it has ended
                with contextlib.suppress(QuiverError):
                    await transaction.abort()
        self._open = None
        one.ended = self._loop.time()
        if transaction.state in (TransactionState.COMMITTED, TransactionState.ABORTED):
            one.told = str(transaction.state)

    async def _fill(
        self, transaction: AsyncTransaction, one: Transaction, messages: list[ReceivedMessage]
    ) -> None:
        results = PartitionId(self._owner.results)
        for message in messages:
            value = bytes(message.payload).decode()
            for number in range(self._rng.randint(1, 3)):
                result = f"{value}/{number}@{one.id}"
                one.outputs.append((results, result))
                await transaction.publish(results, result, key=f"{value}/{number}")
            place = PartitionId(f"{message.topic}/{message.partition}")
            one.inputs.append((place, message.offset))
            await transaction.ack(message)
            self._acked.add(message.id)
