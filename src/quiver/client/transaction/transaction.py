"""A transaction: what it publishes and acknowledges is visible together, or not at all.

Messages are sent while the transaction is open, and count when it is committed. A commit waits until all
of them are stored and all acknowledged messages are kept for it, and then has the coordinator decide.
Until there is an answer the decision is asked for again: who repeats a commit gets the same answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Container, Generator, Iterable
from types import TracebackType
from typing import Any, Self, Unpack

import msgspec
import pyarrow as pa

from quiver.client.consumer.consumer import failure_kind
from quiver.client.consumer.received import ReceivedMessage
from quiver.client.consumer.session.terms import OpenSession
from quiver.client.consumer.settlement_kind import RETURN, Kind
from quiver.client.producer.delivery import Delivery
from quiver.client.producer.many import offer_each
from quiver.client.producer.outgoing import MessageOptions
from quiver.client.producer.producer import AsyncProducer
from quiver.client.producer.table import TableDelivery
from quiver.client.transaction.contents import Sent, TransactionContents, Unconfirmed
from quiver.client.transaction.coordinator import in_doubt
from quiver.client.transaction.lifecycle import Lifecycle
from quiver.client.transaction.transaction_producer import TransactionProducer
from quiver.client.transaction.transaction_producers import HOLD_AFTER_S, TransactionProducers
from quiver.client.transport.cluster import Cluster
from quiver.errors import (
    InvalidRequest,
    QuiverError,
    TransactionError,
    TransactionFenced,
    TransactionInDoubt,
    TransactionTooLarge,
)
from quiver.model.clock import Clock
from quiver.model.transaction import (
    TIMEOUT_S,
    TransactionId,
    TransactionState,
)
from quiver.protocol import EndTransaction, EndTransactionAfter, JoinTransaction, Participant

_ABORT_S = 5.0
"""How long an abort waits: what it does not reach is aborted by the time limit."""
_SOON_US = round(2 * HOLD_AFTER_S * 1e6)
"""A lease that ends by then may not last until the next tick."""


Offer = Callable[[Any, Any, MessageOptions], Delivery]
"""Takes a payload, a key and the options of a message."""


class TransactionTerms(msgspec.Struct, frozen=True):
    name: str | None = None
    timeout_s: float = TIMEOUT_S


class _Done:
    """Something that is done, for who awaits it."""

    def __await__(self) -> Generator[Any, Any, None]:
        return
        yield


class AsyncTransaction:
    """Use it in an ``async with`` block: leaving it commits, an exception aborts.

    ``client`` gives who settles what is received, and ``sessions`` are its consumers: the transaction
    acknowledges no messages of others.
    """

    def __init__(
        self,
        producers: TransactionProducers,
        cluster: Cluster,
        clock: Clock,
        terms: TransactionTerms,
        client: Callable[[], Any],
        sessions: Container[OpenSession],
    ) -> None:
        self.name = terms.name
        self._producers = producers
        self._coordinator = producers.coordinator
        self._cluster = cluster
        self._clock = clock
        self._client = client
        self._sessions = sessions
        self._life = Lifecycle(terms.timeout_s)
        self._has_joined = False
        self._is_unanswered = False
        """Whether a commit was sent that has no answer: it may be decided."""
        self._offers: dict[str, Offer] = {}
        """By topic: takes a message at once. Empty as soon as the transaction takes none any more,
        or a second after its time limit."""
        self._producer: TransactionProducer
        self._contents: TransactionContents

    @property
    def id(self) -> TransactionId:
        """The number under which ``describe_transaction`` knows it."""
        return self._life.id

    @property
    def state(self) -> TransactionState:
        """``open``, ``committed``, ``aborted``, or ``unknown`` if nobody said what became of it."""
        return self._life.state

    # ------------------------------------------------------------------ beginning

    def _begin_at_once(self) -> bool:
        """Begin if no node has to be asked; whether it has begun. From any thread."""
        self._life.require_new()
        producer = self._producers.take_idle(self.name)
        if producer is not None:
            self._begin(producer)
            if self._life.timeout_s == TIMEOUT_S:
                return True
        return False

    async def begin(self) -> Self:
        """Begin. The ``with`` block does it otherwise."""
        if not self._begin_at_once():
            await self._begin_with_nodes()
        return self

    async def _begin_with_nodes(self) -> None:
        """The rest of ``_begin_at_once``, if there is one."""
        if not self._life.is_open:
            self._begin(await self._producers.begin(self.name))
        if self._life.timeout_s == TIMEOUT_S:
            return
        self._has_joined = True
        request = JoinTransaction(
            transaction=self.id, token=self._producer.token, timeout_ms=self._timeout_ms
        )
        try:
            await self._coordinator.join(request)
        except BaseException:
            self._end(is_committed=False, is_clean=False)
            raise

    def _begin(self, producer: TransactionProducer) -> None:
        self._producer = producer
        self._life.begin(producer.transaction, self._clock.monotonic())
        self._contents = TransactionContents(self._cluster, producer)
        self._producers.opened(self)

    @property
    def _timeout_ms(self) -> int:
        return round(self._life.timeout_s * 1000)

    # ------------------------------------------------------------------ publishing

    async def publish(
        self,
        topic: str,
        payload: Any,
        *,
        key: str | bytes | None = None,
        **options: Unpack[MessageOptions],
    ) -> Delivery:
        """Publish a message when the transaction is committed. Waits only while the buffer is full.

        ``options`` are those of ``AsyncClient.publish``. The message is sent in the background; the
        commit waits for it, and fails if it cannot be stored.
        """
        producer = self._known_producer(topic) or await self._open_producer(topic)
        return await producer.send(payload, key=key, **options)

    async def publish_many(
        self, topic: str, messages: Iterable[Any] | pa.RecordBatch | pa.Table
    ) -> int:
        """Publish many messages when the transaction is committed; see ``AsyncClient.publish_many``.

        Returns their number.
        """
        producer = self._known_producer(topic) or await self._open_producer(topic)
        if isinstance(messages, pa.RecordBatch | pa.Table):
            await producer.send_arrow(messages)
            return int(messages.num_rows)
        sent = await offer_each(producer, messages)
        for one in sent:
            if isinstance(one, QuiverError):
                raise one
        return len(sent)

    async def publish_table(self, topic: str, data: pa.RecordBatch | pa.Table) -> TableDelivery:
        """Publish the rows of an Arrow batch or table when the transaction is committed."""
        producer = self._known_producer(topic) or await self._open_producer(topic)
        return await producer.send_arrow(data)

    def _is_overdue(self) -> bool:
        return self._life.is_overdue(self._clock.monotonic())

    def _known_producer(self, topic: str) -> AsyncProducer | None:
        """The producer of a topic, if no node has to be asked. From any thread."""
        self._life.require_open(self._clock.monotonic())
        return self._producer.known(topic)

    async def _open_producer(self, topic: str) -> AsyncProducer:
        return await self._producer.opened(topic)

    # ------------------------------------------------------------------ acknowledging

    def ack(self, messages: Any, *, subscription: str | None = None) -> Awaitable[None]:
        """Acknowledge messages when the transaction is committed. If it is not, they come again.

        ``messages`` is a message that was received or consumed with the same client, several of them,
        or a received batch with its ``subscription``.
        """
        self._life.require_open(self._clock.monotonic())
        if isinstance(messages, pa.RecordBatch | pa.Table):
            if subscription is None:
                raise InvalidRequest("a received batch is acknowledged with its subscription=")
            self._contents.ack_batch(messages, subscription)
            return _Done()
        several = [messages] if isinstance(messages, ReceivedMessage) else _several(messages)
        soon_us, is_urgent = self._clock.time_us() + _SOON_US, False
        for message in several:
            ends_by_itself = self._contents.ack(
                message, self, client=self._client(), sessions=self._sessions
            )
            is_urgent |= ends_by_itself and message.deadline_us < soon_us
        if is_urgent:
            self._producers.tick_soon(self)
        return _Done()

    async def hold(self) -> None:
        """Have the nodes keep the messages for the transaction from now on."""
        await self._contents.held()

    def tick(self) -> bool:
        """Keep the leases of what was acknowledged; whether the transaction is open."""
        if not self._life.is_open or self._is_overdue():
            self._offers.clear()
            return False
        self._contents.keep_leases()
        return True

    # ------------------------------------------------------------------ ending

    async def commit(self) -> None:
        """Commit. Everything is visible on return.

        ``TransactionAborted`` (or another error that says why) if it was aborted.
        ``TransactionInDoubt`` if no node could say what became of it.
        """
        if self._life.is_open and self._is_overdue():
            await self._abort(RETURN)
            raise self._life.timed_out()
        self._life.require_open(self._clock.monotonic())
        self._start_ending()
        try:
            sent = self._contents.send()
            unconfirmed = self._contents.unconfirmed(sent)
            reached = [] if unconfirmed is None else self._contents.reached()
        except BaseException:
            await self._undo(RETURN)
            raise
        if unconfirmed is None or not await self._commit_after(unconfirmed, reached, sent):
            await self._commit_stored(sent)

    async def _commit_after(
        self, unconfirmed: Unconfirmed, reached: list[Participant], sent: Sent
    ) -> bool:
        """Have the node commit as soon as it has confirmed what was sent; whether it has.

        If not, it is committed when all is confirmed.
        """
        request = EndTransactionAfter(after=unconfirmed.requests, **self._ending(reached))
        self._is_unanswered = True
        try:
            is_complete = await self._coordinator.commit_after(unconfirmed.channel, request)
        except TransactionError as error:
            try:
                await self._contents.drained(sent)
            finally:
                self._aborted(error)
            raise
        except QuiverError:
            return False
        except BaseException:
            await self._undo(RETURN)
            raise
        self._is_unanswered = False
        if is_complete is None:
            return False
        is_clean = False
        try:
            is_clean = await self._contents.drained(sent)  # it was confirmed before the commit
        finally:
            self._end(is_committed=True, is_clean=is_complete and is_clean)
        return True

    async def _commit_stored(self, sent: Sent) -> None:
        """Commit when everything is confirmed."""
        try:
            await self._contents.stored(sent)
            reached = self._contents.reached()
        except BaseException as error:
            await self._undo(RETURN)
            if isinstance(error, QuiverError) and self.state is TransactionState.UNKNOWN:
                raise in_doubt(self.id, error) from error
            raise
        if not reached and not self._has_joined:
            self._end(is_committed=True, is_clean=True)
            return
        await self._decide(reached)

    def _start_ending(self) -> None:
        self._life.start_ending()
        self._offers.clear()

    def _end_request(self, reached: list[Participant], *, is_commit: bool) -> EndTransaction:
        return EndTransaction(**self._ending(reached, is_commit=is_commit))

    def _ending(self, reached: list[Participant], *, is_commit: bool = True) -> dict[str, Any]:
        return {
            "transaction": self.id,
            "token": self._producer.token,
            "is_commit": is_commit,
            "name": self.name,
            "participants": reached,
            "age_ms": self._life.age_ms(self._clock.monotonic()),
            "timeout_ms": self._timeout_ms,
        }

    async def _decide(self, reached: list[Participant]) -> None:
        try:
            is_complete = await self._coordinator.commit(self._end_request(reached, is_commit=True))
        except QuiverError as error:
            if isinstance(error, TransactionInDoubt):
                self._end_in_doubt()
            else:
                self._aborted(error)
            raise
        except BaseException:
            self._end_in_doubt()  # whoever waited for the answer is gone
            raise
        self._end(is_committed=True, is_clean=is_complete)

    def _aborted(self, error: QuiverError) -> None:
        """The coordinator did not commit it: what it acknowledged comes again."""
        if isinstance(error, TransactionFenced) and self.name is not None:
            self._producers.fence(self.name, error)
        self._contents.undo()
        self._end(is_committed=False, is_clean=False)

    async def abort(self) -> None:
        """Abort: nothing of it is ever visible, and what it acknowledged comes again."""
        if self.state is TransactionState.ABORTED:
            return
        if not self._life.is_open:
            self._life.require_open(self._clock.monotonic())
        await self._abort(RETURN)

    async def _abort(self, kind: Kind) -> None:
        self._start_ending()
        await self._undo(kind)

    async def _undo(self, kind: Kind) -> None:
        is_clean = False
        try:
            async with asyncio.timeout(_ABORT_S):
                await self._contents.give_back(kind)
                is_clean = await self._contents.drained()
                reached = self._reached_at_most()
                if reached or self._has_joined:
                    request = self._end_request(reached, is_commit=False)
                    is_clean &= (await self._coordinator.end(request)).is_complete
                    self._is_unanswered = False
        except (QuiverError, TimeoutError):
            is_clean = False  # its time limit aborts it
        finally:
            if self._is_unanswered:
                self._end_in_doubt()
            else:
                self._contents.undo()
                self._end(is_committed=False, is_clean=is_clean)

    def _reached_at_most(self) -> list[Participant]:
        """The partitions to tell of an abort. If they are too many, they ask."""
        with contextlib.suppress(TransactionTooLarge):
            return self._contents.reached()
        return []

    def _end(self, *, is_committed: bool, is_clean: bool) -> None:
        self._life.end(is_committed=is_committed)
        self._let_go(is_clean=is_clean)

    def _end_in_doubt(self) -> None:
        self._life.end_in_doubt()
        self._let_go(is_clean=False)

    def _let_go(self, *, is_clean: bool) -> None:
        self._contents.leave(self)
        self._producers.ended(self)
        self._producers.release(self._producer, is_clean=is_clean)

    # ------------------------------------------------------------------ with, and await

    def __await__(self) -> Generator[Any, None, Self]:
        return self.begin().__await__()

    async def __aenter__(self) -> Self:
        return await self.begin()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._leave(error)

    async def _leave(self, error: BaseException | None) -> None:
        """The program leaves the block: commit, or abort if it leaves with an error."""
        if not self._life.is_open:
            return
        if error is None:
            await self.commit()
        else:
            # Like a message in hand, what it has acknowledged has failed: it counts as tried.
            await self._abort(failure_kind(error) if isinstance(error, Exception) else RETURN)


def _several(messages: Any) -> Iterable[Any]:
    return messages if isinstance(messages, Iterable) else [messages]
