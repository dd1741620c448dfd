"""Consumers with a session: the shipped client's, in processes that end in every way there is.

A consumer has many lives. In each its program takes messages from the client's ``AsyncConsumer``, works
on them and settles them, until it closes, its process is killed, its machine is lost or it stands still.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from random import Random

from pyroaring import BitMap64

from quiver.client.consumer.consumer import AsyncConsumer
from quiver.client.consumer.received import ReceivedMessage
from quiver.client.consumer.session.session import ConsumerSession
from quiver.client.consumer.session.terms import SessionTerms
from quiver.client.transport.cluster import Cluster
from quiver.client.transport.pool import Pool
from quiver.cluster.records import NodeId, PartitionId
from quiver.errors import QuiverError, StaleReceipt
from quiver.model.subscription import Guarantee, SubscriptionSettings
from quiver.protocol import AnyReply, AnyRequest, Progress, Received, Settled
from quiver.protocol import Settlement as SentSettlement
from quiver.testing.simulator.broker_clients import is_poison, key_of
from quiver.testing.simulator.history import (
    Delivery,
    Departure,
    History,
    Life,
    Settlement,
    Start,
    Touch,
)
from quiver.testing.simulator.loop import Process, VirtualClock, VirtualLoop
from quiver.testing.simulator.network import SimulatedNetwork
from quiver.testing.simulator.sessions.channels import WireDialer

_CALL_SECONDS = 4.0
_FATES = ("closed", "killed", "lost", "paused")
_FATE_WEIGHTS = (3, 4, 1, 2)


class World:
    """What all consumers have in common, and numbers for what they start, and for their leases."""

    def __init__(
        self,
        nodes: Sequence[str],
        loop: VirtualLoop,
        network: SimulatedNetwork,
        history: History,
    ) -> None:
        self.nodes = list(nodes)
        self.loop = loop
        self.network = network
        self.history = history
        self.batches = count()
        self._leases: dict[bytes, int] = {}

    def number_of(self, lease: bytes) -> int:
        return self._leases.setdefault(lease, len(self._leases))


class SessionNotes:
    """Writes down what a session and its nodes say: it is the ``Observer`` of its channels."""

    def __init__(self, world: World, life: Life) -> None:
        self.started: dict[tuple[PartitionId, int], float] = {}
        """When each message was started last."""
        self.pushes: dict[bytes, tuple[float, str]] = {}
        """When the messages of each lease were pushed, and by whom."""
        self._history = world.history
        self._loop = world.loop
        self._life = life
        self._batches = world.batches
        self._batch = (-1.0, 0)
        self._places: dict[bytes, PartitionId] = {}
        self._starts: dict[int, list[Start]] = {}
        self._sent: dict[int, float] = {}

    def pushed(self, node: str, reply: AnyReply, sent: float) -> None:
        if isinstance(reply, Received):
            for one in reply.portions:
                self._places[one.lease] = PartitionId(f"{one.topic}/{one.partition}")
                self.pushes[one.lease] = (sent, node)

    def sent(self, node: str, request: AnyRequest) -> None:
        if not isinstance(request, Progress):
            return
        if request.answer:
            self._sent[id(request)] = self._loop.time()
        if request.started:
            at = self._loop.time()
            if at != self._batch[0]:  # those of one moment go to the program together
                self._batch = (at, next(self._batches))
            starts = [
                Start(
                    queue=self._life.queue,
                    consumer=self._life.consumer,
                    batch=self._batch[1],
                    partition=partition,
                    offset=offset,
                    at=at,
                )
                for partition, offset in self._held(request.started)
            ]
            if request.answer:
                self._starts[id(request)] = starts
            self._history.starts += starts
            self.started |= {(one.partition, one.offset): at for one in starts}

    def answered(self, node: str, request: AnyRequest, reply: AnyReply) -> None:
        if not isinstance(request, Progress):
            return
        now, at = self._loop.time(), self._sent.pop(id(request))
        starts = self._starts.pop(id(request), ())
        if not isinstance(reply, Settled):
            return
        for start in starts:
            start.answered = now
        if request.held:
            held = tuple(self._held(request.held))
            self._history.touches.append(
                Touch(
                    consumer=self._life.consumer, node=NodeId(node), at=at, answered=now, held=held
                )
            )

    def _held(self, settlements: Sequence[SentSettlement]) -> list[tuple[PartitionId, int]]:
        return [
            (self._places[one.lease], offset)
            for one in settlements
            for offset in BitMap64.deserialize(one.offsets)
        ]


class SessionConsumer:
    """One that lives again and again until it is told to stop; ``is_hasty``: it only wants to finish."""

    def __init__(
        self, name: str, queue: str, settings: SubscriptionSettings, world: World, rng: Random
    ) -> None:
        self.is_hasty = False
        self.stopping = False
        self.settings = settings
        self.world = world
        self._name = name
        self._queue = queue
        self._loop = world.loop
        self._history = world.history
        self._rng = rng
        self._current: SessionLife | None = None

    async def run(self) -> None:
        number = 0
        while not self.stopping:
            life = self._begin(number)
            number += 1
            if self.is_hasty:
                await life.over
            else:
                await self._end_somehow(life)
            await asyncio.sleep(self._rng.uniform(0.05, 0.8))

    def stop(self) -> None:
        """End for good, in good order."""
        self.stopping = True
        if self._current is not None:
            self._current.close()

    def _begin(self, number: int) -> SessionLife:
        record = Life(
            queue=self._queue,
            consumer=f"{self._name}.{number}",
            began=self._loop.time(),
            visibility_s=float(self.settings.visibility),
        )
        self._history.lives.append(record)
        self._current = SessionLife(self, record, Random(self._rng.random()))
        return self._current

    async def _end_somehow(self, life: SessionLife) -> None:
        """Let it live for a while, and then end it; one that is paused may live on."""
        while not life.over.done():
            await asyncio.wait([life.over], timeout=self._rng.uniform(0.5, 7.0))
            if life.over.done() or self.is_hasty:
                break
            (fate,) = self._rng.choices(_FATES, _FATE_WEIGHTS)
            if fate == "paused":
                self._loop.pause(life.process)
                await asyncio.sleep(life.record.visibility_s * self._rng.uniform(0.2, 2.0))
                self._loop.resume(life.process)
            elif fate == "closed":
                life.close()
                break
            else:
                life.kill(silently=fate == "lost")
        await life.over


class SessionLife:
    """One process with one session."""

    def __init__(self, owner: SessionConsumer, record: Life, rng: Random) -> None:
        self.record = record
        self.process = Process(record.consumer)
        self.over: asyncio.Future[None] = owner.world.loop.create_future()
        self._owner = owner
        self._rng = rng
        self._loop = owner.world.loop
        self._history = owner.world.history
        self._is_closing = False
        self._has_closed = False
        self._receipts: dict[str, Settlement] = {}
        self._unconfirmed: list[Settlement] = []
        self._notes = notes = SessionNotes(owner.world, record)
        self._dialer = WireDialer(
            owner.world.network, self._loop, record.consumer, self.process, notes
        )
        clock, chance = VirtualClock(self._loop), Random(rng.random())
        pool = Pool(
            self._dialer,
            rng.sample(owner.world.nodes, len(owner.world.nodes)),
            clock=clock,
            chance=chance,
        )
        self._cluster = Cluster(pool, clock=clock, timeout_s=_CALL_SECONDS, chance=chance)
        self._chance = chance
        self._consumer = AsyncConsumer(self._session, lambda _: None)
        self._loop.start(self.process, self._run())

    def _session(self, settler: AsyncConsumer) -> ConsumerSession:
        terms = SessionTerms(
            subscription=self.record.queue,
            consumer=self.record.consumer,
            prefetch=self._rng.choice((None, None, 1, 5, 20)),
            on_stale=self._note_stale,
        )
        clock = self._cluster._clock
        return ConsumerSession(self._cluster, clock, terms, settler, settler, chance=self._chance)

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """Ask the program to end in good order."""
        self._is_closing = True
        self._leave()
        if not self.process.is_dead:
            self._loop.start(self.process, self._close())

    def kill(self, *, silently: bool = False) -> None:
        self._loop.resume(self.process)
        self._loop.kill(self.process)
        self._dialer.die(silently=silently)
        self._ended("lost" if silently else "killed")

    def _leave(self) -> None:
        """From now on others may have what it has."""
        now, life = self._loop.time(), self.record
        if now < life.leaving:
            life.leaving = now
            departure = Departure(queue=life.queue, consumer=life.consumer, at=now)
            self._history.departures.append(departure)

    def _ended(self, how: str) -> None:
        if not self.over.done():
            self._leave()
            self.record.ended, self.record.how = self._loop.time(), how
            self.over.set_result(None)

    async def _run(self) -> None:
        try:
            await self._consumer.__aenter__()
            while not self._is_closing:
                await self._handle(await anext(self._consumer))
        except QuiverError:
            pass  # there is no node to be had, or the consumer was closed
        await self._close()

    async def _close(self) -> None:
        """Of those who call this the first sees it to its end."""
        if self._has_closed:
            return
        self._has_closed = True
        self._leave()
        unconfirmed = list(self._unconfirmed)
        with suppress(QuiverError):
            await self._consumer.close()
            self._confirm(unconfirmed)
        await self._cluster.close()
        self._ended("closed")

    # ------------------------------------------------------------------ the program

    async def _handle(self, message: ReceivedMessage) -> None:
        delivery = self._note(message)
        rng, mood = self._rng, 1.0 if self._owner.is_hasty else self._rng.random()
        if self._owner.settings.guarantee is Guarantee.AT_MOST_ONCE:
            return
        if mood < 0.04 or (is_poison(delivery.value) and mood < 0.5):
            self._loop.call_soon(self.kill, context=_OUTSIDE.context)  # the message kills it
            await asyncio.sleep(60)
        if mood < 0.12:
            await asyncio.sleep(self.record.visibility_s * rng.uniform(0.8, 2.5))
        elif mood < 0.5:
            await asyncio.sleep(rng.uniform(0.0, 0.15))
        if is_poison(delivery.value) or 0.9 < mood < 0.95:
            kind = "reject" if mood > 0.93 and mood < 1.0 else "nack"
        else:
            kind = "ack"
        await self._settle(message, delivery, kind)

    def _note(self, message: ReceivedMessage) -> Delivery:
        value = bytes(message.payload).decode()
        place = (PartitionId(f"{message.topic}/{message.partition}"), message.offset)
        started = self._notes.started[place]
        pushed, node = self._notes.pushes[message.lease]
        delivery = Delivery(
            queue=self.record.queue,
            consumer=self.record.consumer,
            partition=place[0],
            offset=place[1],
            value=value,
            key=key_of(value),
            attempt=message.deliveries,
            lease=self._owner.world.number_of(message.lease),
            invoked=started,
            ended=self._loop.time(),
            deadline=started + self.record.visibility_s,
            pushed=pushed,
            pushed_by=node,
        )
        self._history.deliveries.append(delivery)
        return delivery

    async def _settle(self, message: ReceivedMessage, delivery: Delivery, kind: str) -> None:
        settlement = Settlement(
            queue=delivery.queue,
            consumer=delivery.consumer,
            kind=kind,
            partition=delivery.partition,
            lease=delivery.lease,
            offsets=(delivery.offset,),
            invoked=self._loop.time(),
            visibility_s=self.record.visibility_s,
        )
        self._history.settlements.append(settlement)
        self._receipts[message.receipt] = settlement
        settling = getattr(message, kind)()
        self._unconfirmed.append(settlement)
        if self._rng.random() < 0.4:
            unconfirmed = list(self._unconfirmed)
            try:
                await settling
            except StaleReceipt:
                pass
            except QuiverError:
                self._unconfirmed.clear()
                return
            self._confirm(unconfirmed)

    def _confirm(self, settlements: list[Settlement]) -> None:
        """A flush says that these are stored, but for those that came too late."""
        now = self._loop.time()
        for one in settlements:
            one.outcome, one.ended = "done", now
        self._unconfirmed = [one for one in self._unconfirmed if one.outcome != "done"]

    def _note_stale(self, receipts: list[str]) -> None:
        for one in receipts:
            if (settlement := self._receipts.get(one)) is not None:
                settlement.stale = settlement.offsets


_OUTSIDE = Process("outside")
