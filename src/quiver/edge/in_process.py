"""Requests to a node from the same process and event loop, without a socket.

Requests and replies are the protocol's own values, so what works here works over the network. The HTTP
edge and the embedded broker are clients like any other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial
from itertools import count
from weakref import WeakSet

from quiver.aio import failed_future, retrieve_exception
from quiver.client import AsyncClient
from quiver.client.transport.channel import CALL_TIMEOUT_S, Answer, Channel, StreamListener
from quiver.client.transport.known_leaders import KnownLeaders
from quiver.client.transport.unread import read, return_of
from quiver.edge.auth.caller import Caller
from quiver.edge.auth.principal import Principal
from quiver.edge.calls.table import CALLS
from quiver.edge.services import NodeServices
from quiver.edge.session import Session
from quiver.errors import ConnectionLost, QuiverError, RequestTimeout, error_from
from quiver.model.batch import Bytes
from quiver.model.clock import Clock
from quiver.protocol import AnyReply, AnyRequest, Failed

_PATIENCE_S = 1.0
"""How far ahead of its rates a caller may run before it is refused."""


class InProcessChannel:
    """A ``Channel`` that hands requests to a session of a node in the same event loop.

    Without a principal they are a stranger's, who may do nothing on a node with authentication.
    ``is_shared``: they come from many programs, which do not end together.
    """

    def __init__(
        self,
        services: NodeServices,
        principal: Principal | None = None,
        *,
        is_shared: bool = False,
    ) -> None:
        authority = services.authority
        caller = Caller(
            authority,
            services.clock,
            principal or authority.stranger,
            patience_s=_PATIENCE_S,
        )
        self._ids = count(1)
        self._waiting: dict[int, tuple[AnyRequest, asyncio.Future[Answer]]] = {}
        self._streams: dict[int, StreamListener] = {}
        self._progress = asyncio.Event()
        self._session = Session(
            services, self._receive, caller, self._progress.set, is_shared=is_shared
        )
        self.is_open = True

    @property
    def is_idle(self) -> bool:
        return self._session.is_idle

    @property
    def is_congested(self) -> bool:
        return self._session.is_busy

    def start(
        self,
        request: AnyRequest,
        body: Sequence[Bytes] = (),
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> asyncio.Future[Answer]:
        request.id = next(self._ids)
        return self._begin(request, body, timeout_s)

    def tell(self, request: AnyRequest) -> None:
        request.id = next(self._ids)
        if self.is_open:
            self._session.receive(request, memoryview(b""))

    def open_stream(
        self, request: AnyRequest, listener: StreamListener, timeout_s: float = CALL_TIMEOUT_S
    ) -> asyncio.Future[Answer]:
        request.id = next(self._ids)
        if self.is_open:
            self._streams[request.id] = listener
        return self._begin(request, (), timeout_s)

    def close_stream(self, request_id: int) -> None:
        self._streams.pop(request_id, None)

    def _begin(
        self, request: AnyRequest, body: Sequence[Bytes], timeout_s: float
    ) -> asyncio.Future[Answer]:
        if not self.is_open:
            return failed_future(ConnectionLost("the node in this process is closed"))
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        self._waiting[request.id] = (request, answer)
        timer = loop.call_later(timeout_s, self._expire, request.id)
        answer.add_done_callback(lambda done: self._done(done, request.id, timer))
        try:
            self._session.receive(request, memoryview(b"".join(body)))
        except QuiverError as error:
            self._settle(request.id, error)
        return answer

    async def call(
        self,
        request: AnyRequest,
        body: Sequence[Bytes] = (),
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Answer:
        answer = self.start(request, body, timeout_s)
        return await read(answer, partial(self._return_unread, request))

    async def drain(self) -> None:
        while self._session.is_busy:
            self._progress.clear()
            await self._progress.wait()

    async def close(self) -> None:
        self.end(ConnectionLost("the node in this process is closed"))

    def end(self, error: QuiverError) -> None:
        """Answer whatever is unanswered with the error, and take nothing more."""
        self.is_open = False
        self._session.close()
        for request_id in list(self._waiting):
            self._settle(request_id, error)
        streams, self._streams = self._streams, {}
        for listener in streams.values():
            listener.ended(error)

    def _receive(self, reply: AnyReply, body: Sequence[Bytes] = ()) -> None:
        request, answer = self._waiting.pop(reply.id, (None, None))
        if answer is None:
            self._pass_to_stream(reply, body)
            return
        if answer.done():
            self._return_unread(request, reply)
            return
        if isinstance(reply, Failed):
            self._streams.pop(reply.id, None)
            answer.set_exception(error_from(reply.code, reply.message, reply.details))
            return
        answer.set_result((reply, memoryview(b"".join(body))))

    def _return_unread(self, request: AnyRequest | None, reply: AnyReply) -> None:
        """Let others have the messages of an answer that nobody reads."""
        back = return_of(request, reply)
        if back is not None:
            self.start(back).add_done_callback(retrieve_exception)

    def _pass_to_stream(self, reply: AnyReply, body: Sequence[Bytes]) -> None:
        listener = self._streams.get(reply.id)
        if listener is None:
            return
        if isinstance(reply, Failed):
            del self._streams[reply.id]
            listener.ended(error_from(reply.code, reply.message, reply.details))
        else:
            listener.received(reply, memoryview(b"".join(body)))

    def _done(
        self, answer: asyncio.Future[Answer], request_id: int, timer: asyncio.TimerHandle
    ) -> None:
        timer.cancel()
        if answer.cancelled():
            self._streams.pop(request_id, None)
            self._waiting.pop(request_id, None)
            self._session.abandon(request_id)

    def _expire(self, request_id: int) -> None:
        self._settle(request_id, RequestTimeout())
        self._session.abandon(request_id)

    def _settle(self, request_id: int, error: QuiverError) -> None:
        _, answer = self._waiting.pop(request_id, (None, None))
        if answer is not None and not answer.done():
            answer.set_exception(error)


class PassingOn:
    """A ``Channel`` to another node of the cluster, for one who was let in here.

    This node checks each request as if it were its own, and the other takes its word for it.
    """

    def __init__(self, channel: Channel, caller: Caller) -> None:
        self._channel = channel
        self._caller = caller

    @property
    def is_open(self) -> bool:
        return self._channel.is_open

    @property
    def is_congested(self) -> bool:
        return self._channel.is_congested

    def start(
        self,
        request: AnyRequest,
        body: Sequence[Bytes] = (),
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> asyncio.Future[Answer]:
        try:
            self._caller.admit(request, CALLS[type(request)], sum(map(len, body)))
        except QuiverError as error:
            return failed_future(error)
        return self._channel.start(request, body, timeout_s)

    def tell(self, request: AnyRequest) -> None:
        with contextlib.suppress(QuiverError):  # nobody waits for an answer
            self._caller.admit(request, CALLS[type(request)], 0)
            self._channel.tell(request)

    def open_stream(
        self, request: AnyRequest, listener: StreamListener, timeout_s: float = CALL_TIMEOUT_S
    ) -> asyncio.Future[Answer]:
        try:
            self._caller.admit(request, CALLS[type(request)], 0)
        except QuiverError as error:
            return failed_future(error)
        return self._channel.open_stream(request, listener, timeout_s)

    def close_stream(self, request_id: int) -> None:
        self._channel.close_stream(request_id)

    async def call(
        self,
        request: AnyRequest,
        body: Sequence[Bytes] = (),
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Answer:
        self._caller.admit(request, CALLS[type(request)], sum(map(len, body)))
        return await self._channel.call(request, body, timeout_s)

    async def drain(self) -> None:
        await self._channel.drain()

    async def close(self) -> None:
        """The connection is shared, and stays."""


class InProcessDialer:
    """A ``Dialer`` to a node that runs in this event loop, and through it to those beside it."""

    def __init__(self, services: NodeServices, principal: Principal | None = None) -> None:
        self._services = services
        self._principal = principal
        self._channels: WeakSet[InProcessChannel] = WeakSet()

    @property
    def is_idle(self) -> bool:
        """Whether nothing that was asked through it is unanswered."""
        return all(channel.is_idle for channel in self._channels)

    async def dial(self, address: str) -> Channel:
        peers = self._services.peers
        if peers is not None and peers.is_peer(address):
            authority = self._services.authority
            principal = self._principal or authority.stranger
            caller = Caller(authority, self._services.clock, principal, patience_s=_PATIENCE_S)
            return PassingOn(await peers.channel(address), caller)
        channel = InProcessChannel(self._services, self._principal, is_shared=True)
        self._channels.add(channel)
        return channel

    def end(self, error: QuiverError) -> None:
        """Answer whatever is unanswered with the error."""
        for channel in list(self._channels):
            channel.end(error)

    async def close(self) -> None:
        """The node goes on without this client."""


class InsideClient(AsyncClient):
    """A client of the node that it runs in, which asks the others.

    They answer a node for what they lead alone. So the client need not know who had messages last.
    """

    def __init__(self, dialer: InProcessDialer, clock: Clock) -> None:
        super().__init__(dialer=dialer, clock=clock)
        self._leaders = KnownLeaders(names_max=0)
