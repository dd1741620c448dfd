"""Transactions in a topic that is mirrored: writers who commit, abort and forget, in either cluster.

They speak the native protocol's requests. Each transaction has a few messages in each partition, and may be
open while the topic is promoted or fails back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from quiver import protocol
from quiver.cluster.records import PartitionId
from quiver.errors import PartitionUnavailable, QuiverError, TransactionError
from quiver.model.builder import BatchBuilder
from quiver.model.envelope import TRANSACTIONAL, ProducerStamp, seal_batch
from quiver.model.ids import ProducerEpoch, ProducerId, Sequence
from quiver.model.transaction import transaction_id
from quiver.testing.simulator.broker_clients import BrokerClient, place_of
from quiver.testing.simulator.messages import Ask
from quiver.testing.simulator.mirrors.history import DEALS, Deal

PARTITIONS = 2
_PATIENCE_SECONDS = 4.0
_CALL_SECONDS = 2.0
_TIMEOUT_MS = 4000

T = TypeVar("T")


class DealWriter:
    def __init__(self, client: BrokerClient, deals: list[Deal]) -> None:
        self.stopping = False
        self._client = client
        self._deals = deals

    async def run(self) -> None:
        while not self.stopping:
            await asyncio.sleep(self._client.rng.uniform(0.1, 0.6))
            begun = await self._insist(
                lambda: self._client.ask_any(protocol.BeginTransactions(name=None), _CALL_SECONDS)
            )
            if begun is not None and not self.stopping:
                assert isinstance(begun.reply, protocol.TransactionsBegun)
                await self._deal(begun.reply)

    async def _deal(self, begun: protocol.TransactionsBegun) -> None:
        rng, loop = self._client.rng, self._client.loop
        producer = ProducerId(begun.producer_id)
        one = Deal(writer=self._client.name, id=transaction_id(producer, ProducerEpoch(0)))
        self._deals.append(one)
        began, mood, sequences = loop.time(), rng.random(), [0] * PARTITIONS
        for _ in range(rng.randint(1, 4)):
            index = rng.randrange(PARTITIONS)
            if not await self._publish(one, producer, index, sequences):
                return  # its time limit ends it
            await asyncio.sleep(rng.uniform(0.0, 0.5))
        if mood < 0.15:
            return  # it forgets about it
        request = protocol.EndTransaction(
            transaction=one.id,
            token=begun.token,
            is_commit=mood >= 0.3,
            participants=[
                protocol.Participant(*place_of(place)) for place in sorted(dict(one.values))
            ],
            age_ms=round((loop.time() - began) * 1000),
            timeout_ms=_TIMEOUT_MS,
        )
        one.asked = "commit" if request.is_commit else "abort"
        answer = await self._insist(lambda: self._client.ask_any(request, _CALL_SECONDS))
        if answer is not None:
            assert isinstance(answer.reply, protocol.TransactionEnded)
            one.told = "committed" if answer.reply.is_committed else "aborted"

    async def _publish(
        self, one: Deal, producer: ProducerId, index: int, sequences: list[int]
    ) -> bool:
        place = PartitionId(f"{DEALS}/{index}")
        value = f"{one.writer}:{one.id}.{len(one.values)}"
        one.values.append((place, value))
        builder = BatchBuilder()
        builder.add(value.encode())
        plain = builder.build()
        stamp = ProducerStamp(producer, ProducerEpoch(0), Sequence(sequences[index]))
        sequences[index] += 1
        batch = seal_batch(plain.body, plain.count, plain.columns, stamp, TRANSACTIONAL)
        ask = Ask(protocol.Publish(topic=DEALS, partition=index), batch.head + bytes(batch.body))
        return await self._insist(lambda: self._client.ask_leader(place, ask)) is not None

    async def _insist(self, call: Callable[[], Awaitable[T]]) -> T | None:
        """The answer to a call, which is repeated for a while; ``None`` if there is none."""
        deadline = self._client.loop.time() + _PATIENCE_SECONDS
        while self._client.loop.time() < deadline and not self.stopping:
            try:
                return await call()
            except TransactionError:
                return None  # it has ended
            except QuiverError:
                await self._client.rest()
        return None


async def visible(
    client: BrokerClient, place: PartitionId, end: int, start: int = 0
) -> tuple[tuple[int, str], ...]:
    """What a reader sees of a partition that ends at ``end``: offsets and values.

    ``PartitionUnavailable`` if it sees less because a transaction is open.
    """
    found: list[tuple[int, str]] = []
    position, before = start, -1
    while position > before:
        read = await client.read(place, position)
        found += read.values
        before, position = position, read.read_to
    if position != end:
        raise PartitionUnavailable(f"a reader sees {place} up to {position} of {end}")
    return tuple(found)
