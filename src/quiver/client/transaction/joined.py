"""A transaction that goes on over several requests, each of which may come to another node.

Nothing of it is kept between requests. Messages have no sequences: one that may be stored is not sent again,
whoever asked is told, and aborts. The coordinator keeps which partitions the transaction reaches.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Unpack

import pyarrow as pa

from quiver.client.consumer.received import settlements
from quiver.client.producer.delivery import Delivery, Published, outcomes
from quiver.client.producer.many import offer_each
from quiver.client.producer.outgoing import MessageOptions
from quiver.client.producer.partition_queue import ProducerSession
from quiver.client.producer.producer import AsyncProducer, ProducerSettings
from quiver.client.transaction.coordinator import Coordinator
from quiver.client.transaction.reference import TransactionReference
from quiver.client.transport.cluster import Cluster, expect
from quiver.errors import InvalidRequest, QuiverError, StaleReceipt
from quiver.model.envelope import TRANSACTIONAL
from quiver.model.receipt import place_of
from quiver.model.transaction import producer_of
from quiver.protocol import EndTransaction, Hold, JoinTransaction, Participant, Settled


class JoinedTransaction:
    """Has the methods of a client that publish and acknowledge."""

    def __init__(self, cluster: Cluster, reference: TransactionReference) -> None:
        self.reference = reference
        self._cluster = cluster
        self._coordinator = Coordinator(cluster, cluster.clock)

    # ------------------------------------------------------------------ publishing

    async def publish(
        self,
        topic: str,
        payload: Any,
        *,
        key: str | bytes | None = None,
        acks: str | None = None,
        **options: Unpack[MessageOptions],
    ) -> Published:
        async with self._writing(topic, acks) as producer:
            return await (await producer.send(payload, key=key, **options))

    async def publish_each(
        self,
        topic: str,
        messages: Iterable[Any] | pa.RecordBatch | pa.Table,
        *,
        acks: str | None = None,
    ) -> list[Published | QuiverError]:
        async with self._writing(topic, acks) as producer:
            if isinstance(messages, pa.RecordBatch | pa.Table):
                return await (await producer.send_arrow(messages)).outcomes()
            sent = await offer_each(producer, messages)
            for promise in {one.promise: None for one in sent if isinstance(one, Delivery)}:
                if not promise.is_done():
                    await promise.future()
            return outcomes(sent)

    async def publish_table(
        self, topic: str, data: pa.RecordBatch | pa.Table, *, acks: str | None = None
    ) -> int:
        async with self._writing(topic, acks) as producer:
            return await (await producer.send_arrow(data)).stored()

    @asynccontextmanager
    async def _writing(self, topic: str, acks: str | None) -> AsyncIterator[AsyncProducer]:
        """A producer whose messages are the transaction's. The coordinator is told where they are."""
        producer = await self._opened(topic, acks)
        try:
            yield producer
        except BaseException:
            with contextlib.suppress(QuiverError):  # what failed before is what to tell
                await self._written(producer)
            raise
        await self._written(producer)

    async def _opened(self, topic: str, acks: str | None) -> AsyncProducer:
        if acks is not None:
            raise InvalidRequest(
                "acks: the messages of a transaction always have those of their topic", field="acks"
            )
        producer_id, epoch = producer_of(self.reference.number)
        session = ProducerSession(producer_id, epoch, TRANSACTIONAL, is_numbered=False)
        timeout_s = self._cluster.timeout_s
        settings = ProducerSettings(delivery_timeout_s=timeout_s, send_timeout_s=timeout_s)
        producer = AsyncProducer(
            self._cluster, topic, settings, self._cluster.clock, session=session
        )
        return await producer.open()

    async def _written(self, producer: AsyncProducer) -> None:
        """Tell the coordinator which partitions have messages of the transaction now."""
        reached = {(producer.topic, partition) for partition in producer.opened_sender.reached}
        await producer.abort()  # what was sent is stored or failed, and nothing else was
        await self._join(reached)

    # ------------------------------------------------------------------ acknowledging

    async def ack(self, subscription: str, messages: Any) -> None:
        """Keep messages for the transaction; ``StaleReceipt`` for those whose lease had ended."""
        held = settlements(messages)
        if not held:
            return
        request = Hold(
            subscription=subscription, settlements=held, transaction=self.reference.number
        )
        _, (reply, _) = await self._cluster.call(request, repeatable=True)
        stale = expect(Settled, reply).stale
        await self._join(await self._places([one.lease for one in held]))
        if stale:
            raise StaleReceipt(
                "some leases had ended: other consumers may have these messages; abort the transaction, "
                "or commit it without them",
                stale=[[one.lease, one.offsets] for one in stale],
            )

    async def _places(self, leases: Iterable[bytes]) -> set[tuple[str, int]]:
        """The partitions of leases. One whose topic is not known asks the coordinator by itself."""
        found: set[tuple[str, int]] = set()
        for number, partition in {place_of(lease) for lease in leases}:
            topic = await self._cluster.topic_of(number)
            if topic is not None:
                found.add((topic, partition))
        return found

    # ------------------------------------------------------------------ the coordinator

    async def begin(self) -> None:
        """Tell the coordinator that it is open."""
        await self._tell([])

    async def _join(self, reached: set[tuple[str, int]]) -> None:
        if reached:
            await self._tell([Participant(*place) for place in sorted(reached)])

    async def _tell(self, participants: list[Participant]) -> None:
        await self._coordinator.join(
            JoinTransaction(
                transaction=self.reference.number,
                token=self.reference.token,
                timeout_ms=self.reference.timeout_ms,
                participants=participants,
            )
        )

    async def commit(self) -> None:
        await self._coordinator.commit(self._end(is_commit=True))

    async def abort(self) -> None:
        await self._coordinator.end(self._end(is_commit=False))

    def _end(self, *, is_commit: bool) -> EndTransaction:
        return EndTransaction(
            transaction=self.reference.number,
            token=self.reference.token,
            is_commit=is_commit,
            name=self.reference.name,
            timeout_ms=self.reference.timeout_ms,
        )
