"""Shared transactions: several clients write a part each, and one of them commits the parts that count.

A shared transaction has a name and a number. A part that the commit does not name is aborted by it: one of a
client that died, or whose work another has done again. Each number is committed at most once. While a client
writes its part it keeps all parts open. All of this lives on the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence

import msgspec

from quiver.aio import cancel_and_wait
from quiver.client.producer.partition_queue import ProducerSession
from quiver.client.producer.producer import AsyncProducer, ProducerSettings
from quiver.client.transaction.contents import TransactionContents
from quiver.client.transaction.coordinator import Coordinator
from quiver.client.transaction.transaction_producer import TransactionProducer
from quiver.client.transport.cluster import Cluster
from quiver.errors import QuiverError, TransactionNotFound, TransactionTooLarge
from quiver.model.ids import ProducerEpoch, ProducerId
from quiver.model.transaction import PARTICIPANTS_MAX, TransactionId, transaction_id
from quiver.protocol import EndTransaction, JoinTransaction, Participant

_IDLE_MAX = 256
"""So many producers are kept for the parts of later numbers."""
_KEEPS_PER_LIMIT = 6
"""How often a client says, within the time limit, that it still writes."""
_KEEP_S_MAX = 20.0
_ABORT_S = 5.0


class PartReference(msgspec.Struct, frozen=True):
    """A part that is stored: what whoever commits has to know of it."""

    transaction: TransactionId
    token: bytes
    participants: list[Participant]


class SharedTransactions:
    """Those of one name, as one client takes part in them."""

    def __init__(self, cluster: Cluster, name: str, timeout_s: float) -> None:
        self.cluster = cluster
        self.name = name
        self.timeout_s = timeout_s
        self.coordinator = Coordinator(cluster, cluster.clock)
        self._idle: deque[tuple[int, TransactionProducer]] = deque()
        """Producers, each with the number of its last part: it is decided when a higher one is open."""

    async def part(self, number: int) -> TransactionPart | None:
        """Begin a part; ``None`` if the shared transaction of this number is committed already."""
        producer = self._take(number)
        if producer is not None:
            try:
                return await self._joined(producer, number)
            except TransactionNotFound:
                self.close()  # the name was not used for long, and was forgotten
        return await self._joined(await self._begin(), number)

    async def _begin(self) -> TransactionProducer:
        begun = await self.coordinator.begin(self.name, is_shared=True)
        return TransactionProducer(begun, self.name, self._make)

    async def _joined(self, producer: TransactionProducer, number: int) -> TransactionPart | None:
        part = TransactionPart(self, producer, number)
        if await part.join():
            self.release(producer, number)
            return None
        part.keep()
        return part

    def _take(self, number: int) -> TransactionProducer | None:
        """A producer whose last part has ended, or ends when this number is joined."""
        if not self._idle or self._idle[0][0] >= number:
            return None
        producer = self._idle.popleft()[1]
        producer.next()
        return producer

    def release(self, producer: TransactionProducer, number: int) -> None:
        """Nothing of its part is under way."""
        if len(self._idle) < _IDLE_MAX and producer.has_next:
            self._idle.append((number, producer))
        else:
            producer.close()

    def _make(self, topic: str, session: ProducerSession) -> AsyncProducer:
        timeout_s = self.cluster.timeout_s
        settings = ProducerSettings(
            delivery_timeout_s=max(timeout_s, ProducerSettings().delivery_timeout_s),
            send_timeout_s=timeout_s,
        )
        return AsyncProducer(self.cluster, topic, settings, self.cluster.clock, session=session)

    # ------------------------------------------------------------------ ending

    async def commit(
        self, number: int, parts: Sequence[PartReference], *, is_last: bool = False
    ) -> None:
        """Commit these parts, and abort all others of the number. Everything is visible on return.

        If the number is committed already, by whomever and with whichever parts, nothing happens.
        """
        reached = _reached(parts)
        if len(reached) > PARTICIPANTS_MAX:
            raise TransactionTooLarge(
                f"the transaction reaches {len(reached):,} partitions, and {PARTICIPANTS_MAX:,} are "
                "allowed"
            )
        await self.coordinator.commit(
            EndTransaction(
                transaction=parts[0].transaction,
                token=parts[0].token,
                is_commit=True,
                name=self.name,
                participants=reached,
                number=number,
                parts=[part.transaction for part in parts],
                is_last=is_last,
            )
        )

    async def abort(
        self, number: int, parts: Sequence[PartReference] = (), *, is_last: bool = False
    ) -> None:
        """Abort all parts of a number; ``TransactionError`` if it is committed.

        The partitions of these parts hear of it at once. Others ask within a second or two.
        """
        begun = await self.coordinator.begin(self.name, is_shared=True)
        await self.coordinator.end(
            EndTransaction(
                transaction=transaction_id(ProducerId(begun.producer_id), ProducerEpoch(0)),
                token=begun.token,
                is_commit=False,
                name=self.name,
                participants=_reached(parts),
                number=number,
                is_last=is_last,
            ),
            _ABORT_S,
        )

    def close(self) -> None:
        """Drop the producers that are kept."""
        while self._idle:
            self._idle.popleft()[1].close()


def _reached(parts: Sequence[PartReference]) -> list[Participant]:
    places = {(one.topic, one.partition) for part in parts for one in part.participants}
    return [Participant(*place) for place in sorted(places)]


class TransactionPart:
    """One client's part. End it with ``stored`` or ``abort``."""

    def __init__(
        self, shared: SharedTransactions, producer: TransactionProducer, number: int
    ) -> None:
        self._shared = shared
        self._producer = producer
        self._number = number
        self._contents = TransactionContents(shared.cluster, producer)
        self._producers: dict[str, AsyncProducer] = {}
        self._keeping: asyncio.Task[None] | None = None

    async def producer(self, topic: str) -> AsyncProducer:
        """What it sends to a topic belongs to the part."""
        producer = self._producers.get(topic)
        if producer is None:
            is_kept = self._producer.known(topic) is not None
            producer = await self._producer.opened(topic)
            if is_kept:  # the topic may have changed since the last part
                await producer.opened_sender.refresh_layout()
            self._producers[topic] = producer
        return producer

    async def stored(self) -> PartReference:
        """Wait until everything is stored. Whoever commits decides whether it counts."""
        try:
            await self._contents.stored()
            participants = self._contents.reached()
        finally:
            await self._stop_keeping()
        stored = PartReference(self._producer.transaction, self._producer.token, participants)
        self._shared.release(self._producer, self._number)
        return stored

    async def abort(self) -> None:
        """Nothing of it counts. What does not arrive is aborted with the others, or by the time limit."""
        await self._stop_keeping()
        with contextlib.suppress(QuiverError, TimeoutError):
            async with asyncio.timeout(_ABORT_S):
                await self._contents.drained()
                await self._shared.coordinator.end(
                    EndTransaction(
                        transaction=self._producer.transaction,
                        token=self._producer.token,
                        is_commit=False,
                        name=self._shared.name,
                        participants=self._contents.reached(),
                    )
                )
        self._producer.close()

    # ------------------------------------------------------------------ the coordinator

    async def join(self) -> bool:
        """Be a part of the shared transaction, for another time limit; whether that is committed."""
        return await self._shared.coordinator.join(
            JoinTransaction(
                transaction=self._producer.transaction,
                token=self._producer.token,
                timeout_ms=round(self._shared.timeout_s * 1000),
                participants=self._contents.reached(),
                name=self._shared.name,
                number=self._number,
            )
        )

    def keep(self) -> None:
        self._keeping = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        """Have the coordinator know that somebody writes."""
        pause_s = min(_KEEP_S_MAX, self._shared.timeout_s / _KEEPS_PER_LIMIT)
        while True:
            await self._shared.cluster.clock.sleep(pause_s)
            with contextlib.suppress(QuiverError):  # the commit says what is wrong
                await self.join()

    async def _stop_keeping(self) -> None:
        if self._keeping is not None:
            await cancel_and_wait(self._keeping)
