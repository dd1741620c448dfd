"""Consumers of a simulated subscription: they receive, and settle well, late, in part or not at all."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from pyroaring import BitMap64

from quiver import protocol
from quiver.cluster.records import NodeId, PartitionId
from quiver.errors import QuiverError
from quiver.model.envelope import entries_in
from quiver.model.subscription import Guarantee, Ordering, SubscriptionSettings
from quiver.testing.simulator.broker_clients import BrokerClient, is_poison, key_of, values_of
from quiver.testing.simulator.history import Delivery, Departure, History, Settlement
from quiver.testing.simulator.loop import DATE_US

_WAIT_MS = 300
_RECEIVE_SECONDS = 2.0
_ATTEMPTS = 3

Settle = type[protocol.Ack] | type[protocol.Nack] | type[protocol.Reject] | type[protocol.Extend]


class Consumer:
    """One that goes on until it is told to stop; ``is_hasty``: it only wants to finish everything."""

    def __init__(
        self,
        client: BrokerClient,
        queue: str,
        settings: SubscriptionSettings,
        leases: list[bytes],
        history: History,
    ) -> None:
        """``leases`` are all that any consumer was given: their numbers stand for them."""
        self.is_hasty = False
        self.stopping = False
        self._client = client
        self._queue = queue
        self._settings = settings
        self._leases = leases
        self._history = history
        self._node: NodeId | None = None
        self._lives = 0

    @property
    def _name(self) -> str:
        return f"{self._client.name}.{self._lives}"

    def stop(self) -> None:
        self.stopping = True

    async def run(self) -> None:
        while not self.stopping:
            portions = await self._receive()
            if self._settings.guarantee is Guarantee.AT_MOST_ONCE:
                continue
            for portion in portions:
                await self._work_on(portion)
            if not self.is_hasty and self._client.rng.random() < 0.03:
                await self._leave()

    # ------------------------------------------------------------------ receiving

    async def _receive(self) -> list[list[Delivery]]:
        """What was received, lease by lease."""
        client, invoked = self._client, self._client.loop.time()
        request = protocol.Receive(
            subscription=self._queue,
            messages_max=20 if self.is_hasty else client.rng.choice((1, 3, 8)),
            wait_ms=_WAIT_MS,
            consumer=self._name,
        )
        try:
            answer = await self._ask(request, _RECEIVE_SECONDS)
        except QuiverError:
            await client.rest()
            return []
        assert isinstance(answer.reply, protocol.Received)
        body, portions = memoryview(answer.body), []
        for info in answer.reply.portions:
            portions.append(self._portion(info, bytes(body[: info.size]), invoked))
            body = body[info.size :]
        return portions

    def _portion(self, info: protocol.PortionInfo, body: bytes, invoked: float) -> list[Delivery]:
        self._leases.append(info.lease)
        values = [value for entry in entries_in(body) for _, value in values_of(entry)]
        offsets = list(BitMap64.deserialize(info.offsets))
        attempts = {
            offset: count
            for count, data in info.deliveries.items()
            for offset in BitMap64.deserialize(data)
        }
        portion = [
            Delivery(
                queue=self._queue,
                consumer=self._name,
                partition=PartitionId(f"{info.topic}/{info.partition}"),
                offset=offset,
                value=value,
                key=key_of(value),
                attempt=attempts.get(offset, 1),
                lease=len(self._leases) - 1,
                invoked=invoked,
                ended=self._client.loop.time(),
                deadline=(info.deadline_us - DATE_US) / 1e6,
            )
            for offset, value in zip(offsets, values, strict=True)
        ]
        self._history.deliveries += portion
        return portion

    # ------------------------------------------------------------------ settling

    async def _work_on(self, portion: list[Delivery]) -> None:
        """Do with messages what consumers do: mostly they are done in time."""
        rng, visibility_s = self._client.rng, float(self._settings.visibility)
        mood = 1.0 if self.is_hasty else rng.random()
        if mood < 0.06:
            return  # it forgets them
        if mood < 0.2:
            await asyncio.sleep(visibility_s * rng.uniform(1.0, 1.5))  # too long
        elif mood < 0.35:
            await asyncio.sleep(visibility_s * rng.uniform(0.3, 0.8))
            await self._settle(protocol.Extend, portion)
            await asyncio.sleep(visibility_s * rng.uniform(0.3, 0.9))
        elif not self.is_hasty:
            await asyncio.sleep(rng.uniform(0.0, 0.1))
        bad = [one for one in portion if is_poison(one.value)]
        if 0.35 <= mood < 0.45:
            bad = portion
        elif bad and self._settings.ordering is not Ordering.NONE:
            bad = [one for one in portion if one.offset >= bad[0].offset]
        good = [one for one in portion if one not in bad]
        failed = protocol.Reject if 0.43 <= mood < 0.5 else protocol.Nack
        for kind, some in ((protocol.Ack, good), (failed, bad)):
            for _ in range(_ATTEMPTS):
                if not some or await self._settle(kind, some):
                    break
                await self._client.rest()

    async def _settle(self, kind: Settle, portion: list[Delivery]) -> bool:
        """Whether an answer came."""
        first, offsets = portion[0], tuple(one.offset for one in portion)
        settlement = Settlement(
            queue=self._queue,
            consumer=self._name,
            kind=kind.__name__.lower(),
            partition=first.partition,
            lease=first.lease,
            offsets=offsets,
            invoked=self._client.loop.time(),
            visibility_s=float(self._settings.visibility),
        )
        self._history.settlements.append(settlement)
        given = [protocol.Settlement(self._leases[first.lease], BitMap64(offsets).serialize())]
        rest: dict[str, Any] = {}
        if kind is protocol.Extend:
            rest = {"visibility_ms": round(settlement.visibility_s * 1000)}
        try:
            answer = await self._ask(
                kind(subscription=self._queue, settlements=given, **rest), _RECEIVE_SECONDS
            )
        except QuiverError:
            settlement.ended = self._client.loop.time()
            return False
        assert isinstance(answer.reply, protocol.Settled)
        settlement.outcome, settlement.ended = "done", self._client.loop.time()
        settlement.stale = tuple(
            offset for one in answer.reply.stale for offset in BitMap64.deserialize(one.offsets)
        )
        return True

    async def _leave(self) -> None:
        """The consumer ends, and comes back in a while."""
        name, now = self._name, self._client.loop.time()
        self._history.departures.append(Departure(queue=self._queue, consumer=name, at=now))
        self._lives += 1  # it comes back as another: the request may be carried out much later
        with contextlib.suppress(QuiverError):
            await self._ask(
                protocol.Leave(subscription=self._queue, consumer=name), _RECEIVE_SECONDS
            )
        await asyncio.sleep(self._client.rng.uniform(0.1, 1.0))

    async def _ask(self, request: protocol.AnyRequest, timeout_s: float) -> Any:
        """Stay with one node as long as it answers."""
        if self._node is None:
            self._node = self._client.rng.choice(self._client._nodes)
        try:
            return await self._client.ask(self._node, request, timeout_s)
        except QuiverError:
            self._node = None
            raise
