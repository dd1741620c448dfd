"""What a node's broker asks of the other nodes: store, find offsets, hand over, catch up.

A partition's leader may change at any time, so a call is retried for a while with the current leader.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

from quiver.aio import TaskSet
from quiver.broker.partition.producer_ids import ProducerIdentity
from quiver.broker.topics.internal_topics import TRANSACTIONS
from quiver.client.transport.cluster import expect
from quiver.edge.peers.messages import (
    Acknowledged,
    BeginNamed,
    Begun,
    CatchUp,
    Extents,
    Finished,
    HasFinished,
    LastOwnSequence,
    LastSequence,
    Partitions,
    ReadSplitHandover,
    SplitHandoverPart,
    StoreBatch,
)
from quiver.edge.peers.peers import Peers
from quiver.errors import NotLeader, QuiverError, TopicNotFound
from quiver.model.batch import UnstoredBatch
from quiver.model.clock import Clock
from quiver.model.ids import Offset, ProducerId
from quiver.model.transaction import TransactionId, TransactionState
from quiver.protocol import (
    AnyRequest,
    CloseTransactions,
    Done,
    EntriesRestored,
    FindOffset,
    Leave,
    OffsetFound,
    PartitionInfo,
    Reply,
    ResolveTransactions,
    RestoreEntries,
    TransactionsResolved,
)

_PATIENCE_S = 10.0
_PAUSE_S = 0.05
_SPREAD_S = 2.0

T = TypeVar("T")
R = TypeVar("R", bound=Reply)


class PeerBroker:
    """``leader_of`` says where a partition is led, if that is known."""

    def __init__(
        self, peers: Peers, clock: Clock, leader_of: Callable[[str, int], str | None]
    ) -> None:
        self._peers = peers
        self._clock = clock
        self._leader_of = leader_of
        self._releasing = TaskSet()

    async def store(self, topic: str, index: int, batch: UnstoredBatch) -> None:
        question = StoreBatch(topic=topic, partition=index)
        body = (batch.head, batch.body)
        await self._at_leader(
            topic, index, lambda address: self._peers.ask(address, question, Acknowledged, body)
        )

    async def restore(self, topic: str, index: int, data: bytes) -> Offset:
        async def ask(address: str) -> Offset:
            request = RestoreEntries(topic=topic, partition=index)
            reply, _ = await (await self._peers.channel(address)).call(request, [data])
            return Offset(expect(EntriesRestored, reply).next_offset)

        return await self._at_leader(topic, index, ask)

    async def find_offset(
        self, topic: str, index: int, *, at: str | None = None, time_us: int | None = None
    ) -> Offset:
        async def ask(address: str) -> Offset:
            request = FindOffset(topic=topic, partition=index, at=at, time_us=time_us)
            reply, _ = await (await self._peers.channel(address)).call(request)
            return Offset(expect(OffsetFound, reply).offset)

        return await self._at_leader(topic, index, ask)

    async def last_sequence(self, topic: str, index: int, identity: ProducerIdentity) -> int | None:
        question = LastSequence(
            topic=topic, partition=index, producer_id=identity.producer_id, epoch=identity.epoch
        )
        answer = await self._at_leader(
            topic, index, lambda address: self._peers.ask(address, question, LastOwnSequence)
        )
        return answer.last

    async def handover(self, topic: str, index: int, offset: int) -> bytes:
        data = b""
        while True:
            question = ReadSplitHandover(
                topic=topic, partition=index, offset=offset, begin=len(data)
            )
            part = await self._at_leader(
                topic,
                index,
                lambda address, asked=question: self._peers.ask(address, asked, SplitHandoverPart),  # type: ignore[misc]
            )
            data += part.data
            if len(data) >= part.size or not part.data:
                return data

    async def has_passed(self, subscription: str, topic: str, index: int, offset: int) -> bool:
        question = HasFinished(
            subscription=subscription, topic=topic, partition=index, offset=offset
        )
        answer = await self._at_leader(
            topic, index, lambda address: self._peers.ask(address, question, Finished)
        )
        return answer.passed

    async def extents(self, topic: str) -> list[PartitionInfo]:
        answers = await self._everybody(
            lambda address: self._peers.ask(
                address, Extents(topic=topic), Partitions, timeout_s=_SPREAD_S
            )
        )
        infos = [info for answer in answers for info in answer.partitions]
        return [info for info in infos if info.bytes is not None]

    async def begin_transactions(
        self, index: int, name: str, owner: str, names_max: int
    ) -> ProducerId:
        question = BeginNamed(name=name, owner=owner, names_max=names_max)
        answer = await self._at_leader(
            TRANSACTIONS, index, lambda address: self._peers.ask(address, question, Begun)
        )
        return answer.producer_id

    async def resolve_transactions(
        self, index: int, transactions: list[TransactionId]
    ) -> dict[TransactionId, TransactionState]:
        request = ResolveTransactions(transactions=list(transactions))
        answer = await self._once(TRANSACTIONS, index, request, TransactionsResolved)
        return {TransactionId(one): TransactionState(state) for one, state in answer.states.items()}

    async def close_transactions(
        self, topic: str, index: int, outcomes: dict[TransactionId, bool]
    ) -> None:
        told = {int(one): is_committed for one, is_committed in outcomes.items()}
        request = CloseTransactions(topic=topic, partition=index, outcomes=told)
        await self._once(topic, index, request, Done)

    def release(self, addresses: list[str], subscription: str, consumer: str) -> None:
        async def leave(address: str) -> None:
            with contextlib.suppress(QuiverError):  # its leases end by themselves, later
                channel = await self._peers.channel(address)
                await channel.call(Leave(subscription=subscription, consumer=consumer))

        for address in addresses:
            self._releasing.start(leave(address))

    async def spread(self, revision: int) -> None:
        await self._everybody(
            lambda address: self._peers.ask(
                address, CatchUp(revision=revision), Acknowledged, timeout_s=_SPREAD_S
            )
        )

    async def _everybody(self, ask: Callable[[str], Awaitable[T]]) -> list[T]:
        """The answers of those who answer."""
        answers = await asyncio.gather(*map(ask, self._peers.addresses), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, QuiverError):
                raise answer
        return [answer for answer in answers if not isinstance(answer, BaseException)]

    async def _once(self, topic: str, index: int, request: AnyRequest, kind: type[R]) -> R:
        """The leader's answer. Whoever asks tries again."""
        address = self._leader_of(topic, index)
        if address is None:
            raise NotLeader(f"partition {index} of {topic!r} has no leader now")
        reply, _ = await (await self._peers.channel(address)).call(request)
        return expect(kind, reply)

    async def _at_leader(self, topic: str, index: int, ask: Callable[[str], Awaitable[T]]) -> T:
        deadline = self._clock.monotonic() + _PATIENCE_S
        while True:
            address = self._leader_of(topic, index)
            try:
                if address is None:
                    raise NotLeader(f"partition {index} of {topic!r} has no leader now")
                return await ask(address)
            except QuiverError as error:
                may_pass = error.retryable or isinstance(error, TopicNotFound)
                if not may_pass or self._clock.monotonic() >= deadline:
                    raise
            await self._clock.sleep(_PAUSE_S)
