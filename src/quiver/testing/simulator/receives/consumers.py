"""Consumers that call ``receive`` of the shipped client, wait, and give receives up at any moment."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress
from random import Random

from pyroaring import BitMap64

from quiver.client.async_client import AsyncClient
from quiver.client.consumer.received import ReceivedMessage
from quiver.cluster.records import PartitionId
from quiver.errors import QuiverError, StaleReceipt
from quiver.model.subscription import Guarantee, Ordering, SubscriptionSettings
from quiver.testing.simulator.broker_clients import is_poison, key_of
from quiver.testing.simulator.history import Delivery, Departure, Settlement
from quiver.testing.simulator.loop import DATE_US, Process, VirtualClock
from quiver.testing.simulator.receives.dialer import ConnectionDialer
from quiver.testing.simulator.sessions.consumers import World

STEP_S = 2.0**-10
"""Patience ends in steps of the network, so that it often ends as an answer comes."""
_PATIENCE_STEPS_MAX = 40
_CALL_SECONDS = 4.0


class ReceivingConsumer:
    """One that lives again and again until it is told to stop; ``is_hasty``: it only wants to finish."""

    def __init__(
        self,
        name: str,
        queue: str,
        settings: SubscriptionSettings,
        world: World,
        rng: Random,
        *,
        dies: bool,
    ) -> None:
        """``dies``: some of its lives end without a word."""
        self.is_hasty = False
        self.stopping = False
        self.settings = settings
        self.queue = queue
        self.world = world
        self._name = name
        self._rng = rng
        self._dies = dies
        self._life: ReceivingLife | None = None

    def stop(self) -> None:
        self.stopping = True
        if self._life is not None:
            self._life.close()

    async def run(self) -> None:
        number = 0
        while not self.stopping:
            life = self._life = ReceivingLife(
                self, f"{self._name}.{number}", Random(self._rng.random())
            )
            number += 1
            await asyncio.wait([life.over], timeout=self._rng.uniform(1.0, 8.0))
            if self.is_hasty or self.stopping:
                await life.over
            elif self._dies and self._rng.random() < 0.4:
                life.kill()
            else:
                life.close()
                await life.over
            await asyncio.sleep(self._rng.uniform(0.05, 0.5))


class ReceivingLife:
    """One process with one client."""

    def __init__(self, owner: ReceivingConsumer, name: str, rng: Random) -> None:
        self.over: asyncio.Future[None] = owner.world.loop.create_future()
        self._owner = owner
        self._name = name
        self._rng = rng
        self._loop = owner.world.loop
        self._history = owner.world.history
        self._process = Process(name)
        self._dialer = ConnectionDialer(owner.world.network, self._loop, name, self._process)
        nodes = rng.sample(owner.world.nodes, len(owner.world.nodes))
        self._client = AsyncClient(
            "quiver://" + ",".join(nodes),
            timeout=_CALL_SECONDS,
            dialer=self._dialer,
            clock=VirtualClock(self._loop),
        )
        for cluster in (self._client._cluster, self._client._read_cluster):
            cluster.pool._bootstrap = list(nodes)  # a simulated address has no port
            cluster._chance = cluster.pool._chance = Random(rng.random())
        self._running = self._loop.start(self._process, self._run())

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """Have the program end in good order, whatever it is doing."""
        self._depart()
        self._loop.call_soon(self._running.cancel, context=self._process.context)

    def kill(self) -> None:
        self._loop.kill(self._process)
        self._dialer.die()
        self._depart()
        self._end()

    def _depart(self) -> None:
        departure = Departure(queue=self._owner.queue, consumer=self._name, at=self._loop.time())
        self._history.departures.append(departure)

    def _end(self) -> None:
        if not self.over.done():
            self.over.set_result(None)

    async def _run(self) -> None:
        try:
            while not self._owner.stopping:
                await self._receive()
        finally:
            self._loop.start(self._process, self._close())

    async def _close(self) -> None:
        with suppress(QuiverError):
            await self._client.leave(self._owner.queue, self._name)
        await self._client.close()
        self._end()

    # ------------------------------------------------------------------ the program

    async def _receive(self) -> None:
        rng, invoked = self._rng, self._loop.time()
        is_patient = self._owner.is_hasty or rng.random() < 0.5
        try:
            async with asyncio.timeout(None) as patience:
                if not is_patient:
                    self._lose(patience, rng.randint(1, _PATIENCE_STEPS_MAX))
                messages = await self._client.receive(
                    self._owner.queue,
                    rng.choice((1, 3, 8)),
                    wait=rng.choice((0.0, 0.5, 3.0)),
                    consumer=self._name,
                )
        except TimeoutError:
            await asyncio.sleep(rng.uniform(0.0, 0.1))
            return
        except QuiverError:
            await asyncio.sleep(rng.uniform(0.05, 0.3))
            return
        leases: dict[bytes, list[tuple[ReceivedMessage, Delivery]]] = defaultdict(list)
        for message in messages:
            leases[message.lease].append((message, self._note(message, invoked)))
        if self._owner.settings.guarantee is not Guarantee.AT_MOST_ONCE:
            for portion in leases.values():
                await self._work_on(portion)

    def _lose(self, patience: asyncio.Timeout, steps: int) -> None:
        """Let patience end after so many steps.

        Of what happens in one step the first to be scheduled is the first to be done. So the end is
        scheduled one step ahead: it comes before some answers, and after others.
        """

        def end() -> None:
            with suppress(RuntimeError):  # the answer has come
                patience.reschedule(self._loop.time() + STEP_S)

        self._loop.call_later(steps * STEP_S, end)

    def _note(self, message: ReceivedMessage, invoked: float) -> Delivery:
        value = bytes(message.payload).decode()
        delivery = Delivery(
            queue=self._owner.queue,
            consumer=self._name,
            partition=PartitionId(f"{message.topic}/{message.partition}"),
            offset=message.offset,
            value=value,
            key=key_of(value),
            attempt=message.deliveries,
            lease=self._owner.world.number_of(message.lease),
            invoked=invoked,
            ended=self._loop.time(),
            deadline=(message.deadline_us - DATE_US) / 1e6,
        )
        self._history.deliveries.append(delivery)
        return delivery

    async def _work_on(self, portion: list[tuple[ReceivedMessage, Delivery]]) -> None:
        rng, is_hasty = self._rng, self._owner.is_hasty
        if not is_hasty:
            visibility_s = float(self._owner.settings.visibility)
            is_slow = rng.random() < 0.05
            await asyncio.sleep(
                visibility_s * rng.uniform(0.8, 1.5) if is_slow else rng.uniform(0.0, 0.05)
            )
        bad = [one for one in portion if is_poison(one[1].value)]
        if bad and self._owner.settings.ordering is not Ordering.NONE:
            bad = [one for one in portion if one[1].offset >= bad[0][1].offset]
        await self._settle("ack", [one for one in portion if one not in bad])
        await self._settle("nack", bad)

    async def _settle(self, kind: str, portion: list[tuple[ReceivedMessage, Delivery]]) -> None:
        if not portion:
            return
        first = portion[0][1]
        settlement = Settlement(
            queue=first.queue,
            consumer=first.consumer,
            kind=kind,
            partition=first.partition,
            lease=first.lease,
            offsets=tuple(delivery.offset for _, delivery in portion),
            invoked=self._loop.time(),
            visibility_s=float(self._owner.settings.visibility),
        )
        self._history.settlements.append(settlement)
        try:
            await getattr(self._client, kind)(first.queue, [message for message, _ in portion])
        except StaleReceipt as error:
            stale = error.details["stale"]
            settlement.stale = tuple(
                offset for _, offsets in stale for offset in BitMap64.deserialize(offsets)
            )
        except QuiverError:
            settlement.ended = self._loop.time()
            return
        settlement.outcome, settlement.ended = "done", self._loop.time()
