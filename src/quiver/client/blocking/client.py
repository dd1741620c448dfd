"""The client for programs without an event loop: it wraps ``AsyncClient``.

A ``Client`` may be used from many threads at once. After a fork the child opens its own connections. A
call runs in the caller's thread; while another thread has one under way, in a loop thread. The loop
thread also serves everything that is created from a client.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import warnings
import weakref
from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from quiver.client.async_client import AsyncClient
from quiver.client.blocking.caller_loop import CallerLoop
from quiver.client.blocking.consumer import Consumer
from quiver.client.blocking.loop_thread import LoopThread, look_after
from quiver.client.blocking.producer import Producer
from quiver.client.blocking.reader import Reader
from quiver.client.blocking.transaction import Transaction
from quiver.client.blocking.wrapper import Wrapper, blocking
from quiver.client.consumer.received import ReceivedMessage
from quiver.client.consumer.session.terms import AckMode, OnStale
from quiver.client.transport.access import Tls
from quiver.client.transport.addresses import DEFAULT_URL
from quiver.client.transport.channel import Dialer
from quiver.client.transport.cluster import Cluster
from quiver.errors import InvalidRequest, QuiverError
from quiver.model.units import Duration

A = TypeVar("A")
T = TypeVar("T")
W = TypeVar("W")
P = ParamSpec("P")

EXIT_TIMEOUT_S = 5.0
"""How long the end of the program waits for messages that were not flushed."""


def _wrapping(
    method: Callable[Concatenate[AsyncClient, P], A],
    wrap: Callable[
        [Callable[[], AsyncClient], Callable[[], LoopThread], Callable[[AsyncClient], A]], W
    ],
) -> Callable[Concatenate[Client, P], W]:
    """A method that wraps what ``method`` of the async client makes."""

    @functools.wraps(method)
    def make(client: Client, /, *args: P.args, **kwargs: P.kwargs) -> W:
        return wrap(
            client._wrapped, client._loop_thread, lambda inner: method(inner, *args, **kwargs)
        )

    return make


class Client(Wrapper[AsyncClient]):
    """A client of Quiver. Use it in a ``with`` block, or call ``close``; see ``AsyncClient``."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        timeout: Duration = "30s",
        token: str | None = None,
        tls: Tls | None = None,
        zone: str | None = None,
        dialer: Dialer | None = None,
    ) -> None:
        self.url = url
        self._terms: dict[str, Any] = {
            "url": url,
            "timeout": timeout,
            "token": token,
            "tls": tls,
            "zone": zone,
        }
        self._dialer = dialer
        self._inner: AsyncClient | None = self._made(dialer)
        self._thread = LoopThread()
        self._caller_loop = self._made_loop()
        self._closed = False
        look_after(self)

    create_topic = blocking(AsyncClient.create_topic)
    alter_topic = blocking(AsyncClient.alter_topic)
    delete_topic = blocking(AsyncClient.delete_topic)
    describe_topic = blocking(AsyncClient.describe_topic)
    list_topics = blocking(AsyncClient.list_topics)
    describe_node = blocking(AsyncClient.describe_node)
    metrics = blocking(AsyncClient.metrics)
    alerts = blocking(AsyncClient.alerts)
    publish = blocking(AsyncClient.publish)
    publish_many = blocking(AsyncClient.publish_many)
    publish_each = blocking(AsyncClient.publish_each)
    publish_table = blocking(AsyncClient.publish_table)
    create_subscription = blocking(AsyncClient.create_subscription)
    create_queue = blocking(AsyncClient.create_queue)
    alter_subscription = blocking(AsyncClient.alter_subscription)
    delete_subscription = blocking(AsyncClient.delete_subscription)
    describe_subscription = blocking(AsyncClient.describe_subscription)
    list_subscriptions = blocking(AsyncClient.list_subscriptions)
    receive = blocking(AsyncClient.receive)
    receive_batch = blocking(AsyncClient.receive_batch)
    ack = blocking(AsyncClient.ack)
    nack = blocking(AsyncClient.nack)
    reject = blocking(AsyncClient.reject)
    extend = blocking(AsyncClient.extend)
    give_back = blocking(AsyncClient.give_back)
    heartbeat = blocking(AsyncClient.heartbeat)
    leave = blocking(AsyncClient.leave)
    seek = blocking(AsyncClient.seek)
    peek = blocking(AsyncClient.peek)
    pending = blocking(AsyncClient.pending)
    purge = blocking(AsyncClient.purge)
    cancel = blocking(AsyncClient.cancel)
    redrive = blocking(AsyncClient.redrive)
    message_status = blocking(AsyncClient.message_status)
    _settle_received = blocking(AsyncClient._settle_received)
    create_token = blocking(AsyncClient.create_token)
    list_tokens = blocking(AsyncClient.list_tokens)
    revoke_token = blocking(AsyncClient.revoke_token)
    describe_cluster = blocking(AsyncClient.describe_cluster)
    move_partition = blocking(AsyncClient.move_partition)
    split_partition = blocking(AsyncClient.split_partition)
    transfer_lead = blocking(AsyncClient.transfer_lead)
    rotate_peer_secret = blocking(AsyncClient.rotate_peer_secret)
    decommission = blocking(AsyncClient.decommission)
    create_mirror = blocking(AsyncClient.create_mirror)
    alter_mirror = blocking(AsyncClient.alter_mirror)
    delete_mirror = blocking(AsyncClient.delete_mirror)
    describe_mirror = blocking(AsyncClient.describe_mirror)
    list_mirrors = blocking(AsyncClient.list_mirrors)
    promote_topics = blocking(AsyncClient.promote_topics)
    producer = _wrapping(AsyncClient.producer, Producer)
    read = _wrapping(AsyncClient.read, Reader)
    transaction = _wrapping(AsyncClient.transaction, Transaction)
    describe_transaction = blocking(AsyncClient.describe_transaction)
    abort_transaction = blocking(AsyncClient.abort_transaction)

    def consume(
        self,
        subscription: str,
        *,
        prefetch: int | None = None,
        visibility: Duration | None = None,
        consumer: str = "",
        on_stale: OnStale | None = None,
        ack: AckMode = "manual",
    ) -> Iterator[ReceivedMessage]:
        """Receive messages one by one, forever; see ``AsyncClient.consume``."""
        with self.consumer(
            subscription,
            prefetch=prefetch,
            visibility=visibility,
            consumer=consumer,
            on_stale=on_stale,
            ack=ack,
        ) as messages:
            for message in messages:  # noqa: UP028 - it would close the consumer before it is left
                yield message

    def consumer(
        self,
        subscription: str,
        *,
        prefetch: int | None = None,
        visibility: Duration | None = None,
        consumer: str = "",
        on_stale: OnStale | None = None,
        ack: AckMode = "manual",
    ) -> Consumer:
        """Like ``consume``, as a block; see ``AsyncClient.consumer``."""
        inner = self._wrapped()
        terms = inner._session_terms(subscription, prefetch, visibility, consumer, on_stale, ack)
        return Consumer(
            lambda settler: inner._session(terms, settler, settler),
            inner._sessions.discard,
            self._thread,
        )

    @property
    def cluster(self) -> Cluster:
        """The connections to the nodes, for coroutines given to ``run``."""
        return self._wrapped().cluster

    def run(self, work: Callable[[AsyncClient], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine with the wrapped async client on its event loop, and wait for the result."""
        inner = self._wrapped()
        return self._thread.run(lambda: work(inner))

    def _run(self, work: Callable[[AsyncClient], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine with an async client, in this thread if possible, and wait for its result."""
        inner, loop = self._wrapped(), self._caller_loop
        # What is settled must be known to the consumer that has it, which lives on the loop thread.
        if loop is not None and not inner._sessions and loop.acquire():
            return loop.run(work)
        return self._thread.run(lambda: work(inner))

    def close(self) -> None:
        """Flush producers, stop readers and consumers, and disconnect."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._caller_loop is not None:
                self._caller_loop.close()
            if self._thread.is_running:
                self._thread.run(self._wrapped().close)
        finally:
            self._thread.close()

    def _wrapped(self) -> AsyncClient:
        if self._inner is None:
            raise InvalidRequest(
                "an embedded broker cannot be used after a fork: open it in the child process"
            )
        return self._inner

    def _made(self, dialer: Dialer | None) -> AsyncClient:
        return _made(weakref.ref(self), dialer=dialer, **self._terms)

    def _made_loop(self) -> CallerLoop | None:
        """Calls of an embedded broker run on the loop that it has."""
        if self._dialer is not None:
            return None
        make = functools.partial(
            _made,
            weakref.ref(self),  # it must not keep the client from being freed
            self._wrapped(),
            **self._terms,
        )
        return CallerLoop(make)

    def _loop_thread(self) -> LoopThread:
        return self._thread

    # ------------------------------------------------------------------ forks and endings

    def forget(self) -> object:
        inherited = self._inner, self._thread, self._caller_loop
        self._inner = None
        if self._dialer is None:
            self._inner = self._made(None)
        self._thread = LoopThread()
        self._caller_loop = self._made_loop()
        return inherited

    def end(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._caller_loop is not None:
            self._caller_loop.close()
        if self._thread.is_running:
            with contextlib.suppress(QuiverError, RuntimeError):
                self._thread.run(self._close_soon)
            self._thread.close()

    async def _close_soon(self) -> None:
        with contextlib.suppress(QuiverError, TimeoutError):
            async with asyncio.timeout(EXIT_TIMEOUT_S):
                await self._wrapped().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        thread, inner = getattr(self, "_thread", None), getattr(self, "_inner", None)
        loop = getattr(self, "_caller_loop", None)
        if thread is None or inner is None or self._closed:
            return
        if not thread.is_running and (loop is None or not loop.is_running):
            return
        warnings.warn(f"unclosed client of {self.url}", ResourceWarning, stacklevel=1, source=self)
        if loop is not None:
            loop.close_later()
        thread.close_after(inner.close)


def _made(
    settler: Callable[[], Any], beside: AsyncClient | None = None, **terms: Any
) -> AsyncClient:
    inner = AsyncClient(**terms)
    inner._settler = settler
    if beside is not None:
        inner._name = beside._name  # to a group it is the same consumer
        inner._note_received = beside._note_received  # the transactions are those of that one
    return inner
