"""A transaction for programs without an event loop; see ``AsyncTransaction``.

Messages are put into their batches, and acknowledgements noted, in the program's own thread. The event
loop hears of the transaction when there is something to send, and to end it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import get_ident
from types import TracebackType
from typing import Any, Self, Unpack

import pyarrow as pa

from quiver.client.async_client import AsyncClient
from quiver.client.blocking.loop_thread import LoopThread
from quiver.client.blocking.producer import when_room
from quiver.client.producer.buffer_budget import BufferFull
from quiver.client.producer.delivery import Delivery
from quiver.client.producer.outgoing import MessageOptions
from quiver.client.producer.producer import AsyncProducer
from quiver.client.producer.table import TableDelivery
from quiver.client.transaction.transaction import AsyncTransaction, Offer
from quiver.errors import InvalidRequest, TransactionError
from quiver.model.transaction import TransactionId, TransactionState


class Transaction:
    """Use it in a ``with`` block: leaving it commits, an exception aborts. Belongs to one thread."""

    def __init__(
        self,
        client: Callable[[], AsyncClient],
        thread: Callable[[], LoopThread],
        make: Callable[[AsyncClient], AsyncTransaction],
    ) -> None:
        self._inner = make(client())
        self._loop_thread = thread
        self._loop = thread()
        self._thread: int | None = None
        self._offers = self._inner._offers

    @property
    def id(self) -> TransactionId:
        """The number under which ``describe_transaction`` knows it."""
        return self._inner.id

    @property
    def name(self) -> str | None:
        return self._inner.name

    @property
    def state(self) -> TransactionState:
        """``open``, ``committed``, ``aborted``, or ``unknown`` if nobody said what became of it."""
        return self._inner.state

    def begin(self) -> Self:
        """Begin. The ``with`` block does it otherwise."""
        self._require_own()
        inner, self._thread = self._inner, get_ident()
        if not inner._begin_at_once():
            self._loop.run(inner._begin_with_nodes)
        return self

    def publish(
        self,
        topic: str,
        payload: Any,
        *,
        key: str | bytes | None = None,
        **options: Unpack[MessageOptions],
    ) -> Delivery:
        """Publish a message when the transaction is committed. Waits only while the buffer is full.

        ``options`` are those of ``Client.publish``. The message is sent in the background; the
        commit waits for it, and fails if it cannot be stored.
        """
        offer = self._offers.get(topic)
        if offer is None or self._thread != get_ident() or self._loop_thread() is not self._loop:
            offer = self._offer_to(topic)
        try:
            return offer(payload, key, options)
        except BufferFull as full:
            producer = self._producer_of(topic)
            return when_room(producer, full.size, lambda: offer(payload, key, options))

    def _offer_to(self, topic: str) -> Offer:
        offer = self._offers[topic] = self._producer_of(topic).opened_validator.offer
        return offer

    def _producer_of(self, topic: str) -> AsyncProducer:
        """The producer of a topic. Raises why the transaction takes no message, if so."""
        self._require_own()
        known = self._inner._known_producer(topic)
        return known or self._loop.run(lambda: self._inner._open_producer(topic))

    def publish_many(self, topic: str, messages: Iterable[Any] | pa.RecordBatch | pa.Table) -> int:
        """Publish many messages when the transaction is committed; see ``Client.publish_many``.

        Returns their number.
        """
        self._require_own()
        return self._loop.run(lambda: self._inner.publish_many(topic, messages))

    def publish_table(self, topic: str, data: pa.RecordBatch | pa.Table) -> TableDelivery:
        """Publish the rows of an Arrow batch or table when the transaction is committed."""
        self._require_own()
        return self._loop.run(lambda: self._inner.publish_table(topic, data))

    def ack(self, messages: Any, *, subscription: str | None = None) -> None:
        """Acknowledge messages when the transaction is committed. If it is not, they come again.

        ``messages`` is a message that was received or consumed with the same client, several of them,
        or a received batch with its ``subscription``.
        """
        self._require_own()
        self._inner.ack(messages, subscription=subscription)

    def commit(self) -> None:
        """Commit. Everything is visible on return.

        ``TransactionAborted`` (or another error that says why) if it was aborted.
        ``TransactionInDoubt`` if no node could say what became of it.
        """
        self._require_own()
        self._loop.run(self._inner.commit)

    def abort(self) -> None:
        """Abort: nothing of it is ever visible, and what it acknowledged comes again."""
        self._require_own()
        self._loop.run(self._inner.abort)

    def _require_own(self) -> None:
        if self._loop_thread() is not self._loop:
            raise TransactionError("the transaction was begun before a fork: begin another")
        if self._thread not in (None, get_ident()):
            raise InvalidRequest(
                "a transaction belongs to the thread that began it: begin one in each thread"
            )

    def __enter__(self) -> Self:
        return self.begin()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._require_own()
        self._loop.run(lambda: self._inner._leave(error))
