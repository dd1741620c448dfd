"""A producer for many messages: pipelined, batched, and stored exactly once.

``send`` returns as soon as the message is in the buffer, with a ``Delivery`` for its result. Use a
producer with ``async with``, or ``await`` it to open it and call ``close``; both flush.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import msgspec
import pyarrow as pa

from quiver.aio import SingleFlight
from quiver.client.producer.accumulator import BatchLimits
from quiver.client.producer.buffer_budget import BufferFull
from quiver.client.producer.delivery import Delivery
from quiver.client.producer.outgoing import MessageOptions
from quiver.client.producer.partition_queue import ProducerSession
from quiver.client.producer.sender import Sender
from quiver.client.producer.table import TableDelivery
from quiver.client.producer.table_sender import TableSender
from quiver.client.producer.validation import MessageValidator
from quiver.client.transport.cluster import Cluster
from quiver.errors import ConnectionLost, InvalidRequest, Overloaded, QuiverError
from quiver.model.batch import UnstoredBatch
from quiver.model.clock import Clock
from quiver.model.topic import Acks, Compression

T = TypeVar("T")
_CLOSE_TIMEOUT_EXTRA_S = 5.0


class ProducerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a producer gathers and sends. Times are seconds, sizes bytes."""

    acks: Acks | None = None
    """Which replicas must store a message; ``None`` is the topic's setting."""
    name: str | None = None
    """Makes the producer outlive its process: see ``sequence`` of ``send``."""
    compression: Compression | None = None
    limits: BatchLimits = BatchLimits()
    delivery_timeout_s: float = 120.0
    """How long a message is tried before it fails."""
    send_timeout_s: float = 30.0
    """How long ``send`` waits for room in the buffer."""


class AsyncProducer:
    """A producer for one topic. It belongs to the event loop on which it was opened."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        settings: ProducerSettings,
        clock: Clock,
        on_close: Callable[[AsyncProducer], None] = lambda _: None,
        session: ProducerSession | None = None,
    ) -> None:
        if settings.name is not None and settings.acks is Acks.NONE:
            raise InvalidRequest("a named producer needs confirmations: use acks other than 'none'")
        self.topic = topic
        self.settings = settings
        self._cluster = cluster
        self._clock = clock
        self._on_close = on_close
        self._session = session
        self._sender: Sender | None = None
        self._validator: MessageValidator | None = None
        self._opening: SingleFlight[None, None] = SingleFlight()
        self._closed = False

    async def open(self) -> Self:
        """Look up the topic and open a session. The first ``send`` does it otherwise."""
        if self._closed:
            raise InvalidRequest("the producer is closed")
        if self._sender is None:
            # One task for all who wait, so that they go on together and share a batch.
            await self._opening.run(None, self._open)
        return self

    async def _open(self) -> None:
        settings = self.settings
        # What is remembered may be of a topic that was deleted and made anew.
        layout = await self._cluster.refresh(self.topic)
        sender = Sender(
            self._cluster,
            layout,
            settings.limits,
            acks=settings.acks,
            name=settings.name,
            compression=settings.compression,
            delivery_timeout_s=settings.delivery_timeout_s,
            clock=self._clock,
        )
        if self._session is not None:
            sender.begin(self._session)
        if settings.name is not None and sender.acks is Acks.NONE:
            raise InvalidRequest(
                f"topic {self.topic!r} has acks 'none': give acks='quorum' or 'all'"
            )
        await sender.open()
        self._sender, self._validator = sender, MessageValidator(sender, self._clock)

    @property
    def name(self) -> str | None:
        return self.settings.name

    @property
    def last_sequences(self) -> dict[int, int]:
        """By partition: the highest ``sequence`` that is stored under this name."""
        return dict(self._sender.last_sequences) if self._sender is not None else {}

    async def send(
        self,
        payload: Any,
        *,
        key: str | bytes | None = None,
        transaction: Any = None,
        **options: Unpack[MessageOptions],
    ) -> Delivery:
        """Send a message. Waits only while the buffer is full, and raises ``Overloaded`` after a time.

        ``options`` are ``headers``, ``priority``, ``delay``, ``deliver_at``, ``ttl``, ``event_time``,
        ``dedup_id``, ``partition`` and ``sequence``: see ``MessageOptions``. With a ``transaction``
        it is the transaction's message, in a batch of its own settings.
        """
        if transaction is not None:
            check_unnamed(self.name)
            delivery: Delivery = await transaction.publish(self.topic, payload, key=key, **options)
            return delivery
        validator = self._validator or await self._opened_validator()
        try:
            return validator.offer(payload, key, options)
        except BufferFull as full:
            return await self._when_budget(
                full.size, lambda: validator.offer(payload, key, options)
            )

    async def send_arrow(
        self, data: pa.RecordBatch | pa.Table, *, transaction: Any = None
    ) -> TableDelivery:
        """Send the rows of an Arrow batch or table, whose columns are the fields of a message.

        Rows are split by key where there are keys; ``payload`` is the one column that must be there.
        """
        if transaction is not None:
            check_unnamed(self.name)
            sent: TableDelivery = await transaction.publish_table(self.topic, data)
            return sent
        validator = self._validator or await self._opened_validator()
        sender = TableSender(self.opened_sender, validator, self.settings.limits, self._when_budget)
        return await sender.send(data)

    async def send_encoded(self, batch: UnstoredBatch, partition: int) -> Delivery:
        """Take a batch that is encoded and checked already; the delivery is that of its first row."""
        validator = self._validator or await self._opened_validator()
        validator.check_partition(partition)
        accumulator = self.opened_sender.accumulator

        def offer() -> Delivery:
            return Delivery(accumulator.add_encoded(partition, batch), 0)

        try:
            return offer()
        except BufferFull as full:
            return await self._when_budget(full.size, offer)

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until all messages are stored or failed. Raises the first failure that was not read."""
        if self._sender is not None:
            await self._sender.flush(timeout)

    async def close(self) -> None:
        """Flush and close. Later sends are refused."""
        was_closed, self._closed = self._closed, True
        if was_closed:
            return
        await self._opening.cancel()
        try:
            await self.flush(self.settings.delivery_timeout_s + _CLOSE_TIMEOUT_EXTRA_S)
        finally:
            await self.abort()

    async def abort(self) -> None:
        """Close at once. Messages that are not stored yet fail."""
        self._closed = True
        if self._sender is not None:
            self._sender.stop(
                ConnectionLost("the producer was closed before the message was confirmed"),
                refusal=InvalidRequest("the producer is closed"),
            )
            await self._sender.join()
        self._on_close(self)

    @property
    def opened_sender(self) -> Sender:
        assert self._sender is not None, "the producer is open"
        return self._sender

    @property
    def opened_validator(self) -> MessageValidator:
        assert self._validator is not None, "the producer is open"
        return self._validator

    async def _opened_validator(self) -> MessageValidator:
        await self.open()
        return self.opened_validator

    async def _when_budget(self, size: int, offer: Callable[[], T]) -> T:
        budget = self.opened_sender.accumulator.budget
        try:
            async with asyncio.timeout(self.settings.send_timeout_s):
                while True:
                    await budget.wait_async(size)
                    try:
                        return offer()
                    except BufferFull as full:
                        size = full.size
        except TimeoutError:
            raise self.full() from None

    def full(self) -> Overloaded:
        settings = self.settings
        return Overloaded(
            f"the producer's buffer of {settings.limits.buffer_bytes:,} bytes stayed full for "
            f"{settings.send_timeout_s:g} s; send more slowly or raise buffer_bytes"
        )

    # ------------------------------------------------------------------ with, and await

    def __await__(self) -> Generator[Any, None, Self]:
        return self.open().__await__()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            await self.close()
        elif isinstance(error, Exception):
            # The error that ended the block is the one to tell.
            with contextlib.suppress(QuiverError):
                await self.close()
        else:
            await self.abort()


def check_unnamed(name: str | None) -> None:
    """A transaction and a name both say who wrote a message, and only one can."""
    if name is not None:
        raise InvalidRequest("a named producer sends nothing in a transaction: use another one")
