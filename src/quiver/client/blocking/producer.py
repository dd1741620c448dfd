"""A producer for programs without an event loop.

``send`` puts a message into its batch in the caller's own thread. The loop thread hears of it only
when a batch is ready, or a partition with nothing under way gets its first message.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, Unpack

import pyarrow as pa

from quiver.client.async_client import AsyncClient
from quiver.client.blocking.loop_thread import LoopThread, look_after
from quiver.client.blocking.wrapper import Wrapper, blocking
from quiver.client.producer.buffer_budget import BufferFull
from quiver.client.producer.delivery import Delivery
from quiver.client.producer.outgoing import MessageOptions
from quiver.client.producer.producer import AsyncProducer, check_unnamed
from quiver.client.producer.table import TableDelivery
from quiver.errors import QuiverError


def when_room(producer: AsyncProducer, size: int, offer: Callable[[], Delivery]) -> Delivery:
    """Offer a message again when its producer has room for so many bytes, until that succeeds."""
    budget = producer.opened_sender.accumulator.budget
    deadline = time.monotonic() + producer.settings.send_timeout_s
    while budget.wait(size, deadline - time.monotonic()):
        try:
            return offer()
        except BufferFull as full:
            size = full.size
    raise producer.full() from None


class Producer(Wrapper[AsyncProducer]):
    """A producer for one topic; ``Client.producer`` creates it. After a fork the child starts a new one."""

    def __init__(
        self,
        client: Callable[[], AsyncClient],
        thread: Callable[[], LoopThread],
        make: Callable[[AsyncClient], AsyncProducer],
    ) -> None:
        self._client = client
        self._loop_thread = thread  # type: ignore[method-assign]
        self._make = make
        self._lock = threading.Lock()
        self._inner: AsyncProducer | None = None
        self._offer = self._offer_first
        self._closed = False
        self._wrapped()
        look_after(self)

    def send(
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
            delivery: Delivery = transaction.publish(self.topic, payload, key=key, **options)
            return delivery
        try:
            return self._offer(payload, key, options)
        except BufferFull as full:
            return when_room(self._wrapped(), full.size, lambda: self._offer(payload, key, options))

    def send_arrow(
        self, data: pa.RecordBatch | pa.Table, *, transaction: Any = None
    ) -> TableDelivery:
        """Send the rows of an Arrow batch or table; see ``AsyncProducer.send_arrow``."""
        if transaction is not None:
            check_unnamed(self.name)
            sent: TableDelivery = transaction.publish_table(self.topic, data)
            return sent
        return self._run(lambda inner: inner.send_arrow(data))

    send_encoded = blocking(AsyncProducer.send_encoded)
    flush = blocking(AsyncProducer.flush)

    def close(self) -> None:
        """Flush and close. Later sends are refused."""
        self._closed = True
        if self._inner is not None:
            self._loop_thread().run(self._inner.close)

    @property
    def topic(self) -> str:
        return self._wrapped().topic

    @property
    def name(self) -> str | None:
        return self._wrapped().name

    @property
    def last_sequences(self) -> dict[int, int]:
        """By partition: the highest ``sequence`` that is stored under this name."""
        return self._wrapped().last_sequences

    # ------------------------------------------------------------------ sending

    def _offer_first(
        self, payload: Any, key: str | bytes | None, options: MessageOptions
    ) -> Delivery:
        return self._wrapped().opened_validator.offer(payload, key, options)

    def _wrapped(self) -> AsyncProducer:
        with self._lock:
            if self._inner is None:

                async def opened() -> AsyncProducer:
                    return await self._make(self._client()).open()

                self._inner = self._loop_thread().run(opened)
                self._offer = self._inner.opened_validator.offer
            return self._inner

    # ------------------------------------------------------------------ forks and endings

    def forget(self) -> object:
        # What was sent before the fork is the parent's to send.
        inherited, self._inner = (self._inner, self._offer), None
        self._lock = threading.Lock()
        self._offer = self._offer_first
        return inherited

    def end(self) -> None:
        """The client flushes it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        elif isinstance(error, Exception):
            # The error that ended the block is the one to tell.
            with contextlib.suppress(QuiverError):
                self.close()
        elif self._inner is not None:
            self._loop_thread().run(self._inner.abort)
