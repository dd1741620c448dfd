"""The consumer sessions of one client: messages go out as they become ready, over its connection.

A session is known by the id of the request that opened it. What the node sends for it has that id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quiver import protocol
from quiver.broker.delivery.partition_delivery import Portion
from quiver.broker.subscription.consumer import Consumer, ConsumerTerms, SessionEnd
from quiver.broker.subscription.subscription import Subscription
from quiver.edge.auth.caller import Caller
from quiver.edge.auth.principal import PEER
from quiver.edge.messages.receiving import CONSUMER_MAX, received_of
from quiver.edge.messages.settling import Stored, settled_of, settlements_of
from quiver.edge.services import NodeServices
from quiver.errors import InvalidRequest, QuiverError, QuotaExceeded, SessionNotFound
from quiver.model.batch import Bytes
from quiver.model.subscription import Guarantee

SESSIONS_MAX = 1000
"""How many sessions one connection may have. One that many share has as many as there are clients."""

Send = Callable[[protocol.AnyReply, Sequence[Bytes]], None]


class ConsumerStream:
    """One session. It is the ``Connection`` of its consumer."""

    def __init__(
        self,
        services: NodeServices,
        caller: Caller,
        request: protocol.Consume,
        streams: ConsumerStreams,
    ) -> None:
        if request.window < 0 or request.bytes_max < 1:
            raise InvalidRequest("a window is 0 or more messages, and 1 or more bytes")
        self.id = request.id
        self._services = services
        self._caller = caller
        self._name = request.subscription
        self._streams = streams
        self._send = streams.send
        self._terms = ConsumerTerms(
            name=request.consumer[:CONSUMER_MAX],
            window=0,
            bytes_max=request.bytes_max,
            visibility_us=None if request.visibility_ms is None else request.visibility_ms * 1000,
            partitions=request.partitions,
        )
        self._window = request.window
        self._subscription: Subscription | None = None
        self._consumer: Consumer | None = None
        self._told = protocol.Consuming()

    async def open(self) -> protocol.Consuming:
        """Begin; the answer. Nothing is pushed before ``run``."""
        self._subscription = await self._services.broker.directory.get(self._name)
        self._consumer = self._subscription.sessions.open(self._terms, self)
        self._told = self._terms_now(self._subscription)
        return self._told

    def run(self) -> None:
        """The answer is on its way: push."""
        if self._consumer is not None and self._subscription is not None:
            self._consumer.window = self._window
            self._subscription.sessions.push()

    def _terms_now(self, subscription: Subscription) -> protocol.Consuming:
        settings, broker = subscription.record.settings, self._services.broker
        leaders = broker.leaders.leaders(self._name)
        assert self._consumer is not None
        return protocol.Consuming(
            id=self.id,
            leaders=sorted(address for address in leaders if address is not None),
            leads=None in leaders,
            ordering=settings.ordering,
            guarantee=settings.guarantee,
            visibility_ms=self._consumer.visibility_us // 1000,
            session_timeout_ms=settings.session_timeout_us // 1000,
            max_processing_ms=settings.max_processing_us // 1000,
        )

    # ------------------------------------------------------------------ from the subscription

    @property
    def client(self) -> object:
        return self if self._streams.is_shared_by(self._caller) else self._streams

    def room(self, wanted: int) -> int:
        try:
            return self._caller.room_for_messages(wanted)
        except QuotaExceeded:
            return 0

    def deliver(self, portions: list[Portion]) -> None:
        assert self._subscription is not None
        reply, body = received_of(self._subscription, portions)
        reply.id = self.id
        self._caller.sent(sum(portion.size for portion in portions))
        self._send(reply, body)

    def ended(self, error: QuiverError) -> None:
        self._consumer = None
        self._streams.forget(self.id)
        self._send(protocol.failure(self.id, error), ())

    # ------------------------------------------------------------------ from the client

    def progress(self, request: protocol.Progress) -> tuple[protocol.Settled, list[Stored]]:
        """What the client says; what its program may not have, and what must be stored before."""
        subscription, consumer = self._subscription, self._consumer
        if subscription is None or consumer is None:
            raise SessionNotFound(f"there is no session {self.id}")
        consumer.heard()
        started = settlements_of(request.started)
        lost, stored = subscription.sessions.start(consumer, started)
        if request.held:
            subscription.sessions.keep(consumer, settlements_of(request.held))
        if request.released:
            subscription.sessions.release(consumer, settlements_of(request.released))
        if request.partitions is not None:
            consumer.partitions = request.partitions
        if request.is_over:
            self.close(_end_of(request))
            return settled_of(lost), stored
        if request.window is not None:
            consumer.window = max(0, request.window)
        if subscription.record.settings.guarantee is not Guarantee.AT_MOST_ONCE:
            deadline_us = self._services.clock.time_us() + consumer.visibility_us
            self._caller.started(request.started, deadline_us)
        is_heartbeat = not request.started and not request.released and request.window is None
        if not is_heartbeat or request.partitions is not None:
            subscription.sessions.push()
        return settled_of(lost), stored

    def set_writable(self, is_writable: bool) -> None:
        if self._consumer is not None and self._subscription is not None:
            self._consumer.is_writable = is_writable
            if is_writable:
                self._subscription.sessions.push()

    def tick(self) -> None:
        """In a cluster, tell the client if other nodes lead the partitions than it was told."""
        if self._services.peers is None or self._subscription is None or self._consumer is None:
            return
        now = self._terms_now(self._subscription)
        if now != self._told:
            self._told = now
            self._send(now, ())

    def close(self, how: SessionEnd) -> None:
        """The session is over. May be called twice."""
        subscription, consumer = self._subscription, self._consumer
        self._consumer = None
        self._streams.forget(self.id)
        if subscription is not None and consumer is not None:
            subscription.sessions.close(consumer, how)


def _end_of(request: protocol.Progress) -> SessionEnd:
    if request.is_moved:
        return SessionEnd.MOVED
    return SessionEnd.SILENT if request.is_silent else SessionEnd.CLOSED


class ConsumerStreams:
    """The sessions of one client. ``send`` is called for each of them, with its id in the reply."""

    def __init__(self, services: NodeServices, send: Send, *, is_shared: bool = False) -> None:
        self._services = services
        self.send = send
        self._is_shared = is_shared
        self._streams: dict[int, ConsumerStream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def is_shared_by(self, caller: Caller) -> bool:
        """Whether the connection is one for many programs, which do not end together."""
        return self._is_shared or caller.principal is PEER

    def new(self, caller: Caller, request: protocol.Consume) -> ConsumerStream:
        is_shared = self.is_shared_by(caller)
        sessions_max = self._services.limits.connections_max if is_shared else SESSIONS_MAX
        if len(self._streams) >= sessions_max:
            raise InvalidRequest(
                f"one connection may have {sessions_max:,} consumer sessions at most"
            )
        stream = ConsumerStream(self._services, caller, request, self)
        self._streams[stream.id] = stream
        return stream

    def forget(self, session: int) -> None:
        self._streams.pop(session, None)

    def get(self, session: int) -> ConsumerStream:
        stream = self._streams.get(session)
        if stream is None:
            raise SessionNotFound(f"there is no session {session}")
        return stream

    def run(self, session: int) -> None:
        """The answer that the session is open was sent: push from now on."""
        stream = self._streams.get(session)
        if stream is not None:
            stream.run()

    def set_writable(self, is_writable: bool) -> None:
        for stream in list(self._streams.values()):
            stream.set_writable(is_writable)

    def end(self, error: QuiverError) -> None:
        """The node ends them. What the consumers work on stays with them."""
        for stream in list(self._streams.values()):
            stream.close(SessionEnd.MOVED)
            self.send(protocol.failure(stream.id, error), ())

    def close(self) -> None:
        """The client is gone, without a word."""
        for stream in list(self._streams.values()):
            stream.close(SessionEnd.SILENT)
