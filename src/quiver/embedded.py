"""The same broker inside this process, reached without a socket.

``EmbeddedDialer`` starts a node on a data folder when the client first needs it, in the client's own
event loop, and stops it when the client closes. Requests and replies are the wire's own values, so
what works here works over the network.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from itertools import count
from typing import Any

import structlog

from quiver.client import AsyncClient, Client
from quiver.client.channel import CALL_TIMEOUT_S, Answer
from quiver.config import NodeConfig
from quiver.edge.access.caller import Caller
from quiver.edge.access.principal import INTERNAL, Principal
from quiver.edge.node import Node
from quiver.edge.session import NodeServices, Session
from quiver.errors import ConnectionLost, QuiverError, RequestTimeout
from quiver.model.batch import Bytes
from quiver.model.clock import Clock
from quiver.model.wire import AnyReply, AnyRequest, Failed, raise_failure


class EmbeddedChannel:
    """A ``Channel`` that hands requests to a session of a node in the same event loop."""

    def __init__(self, services: NodeServices, principal: Principal = INTERNAL) -> None:
        caller = Caller(services.authority, services.clock, principal, address="embedded")
        self._session = Session(services, self._receive, caller)
        self._ids = count(1)
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._progress = asyncio.Event()
        self._session.on_progress = self._progress.set
        self.is_open = True

    @property
    def is_congested(self) -> bool:
        return self._session.is_busy

    def start(
        self,
        request: AnyRequest,
        body: Sequence[Bytes] = (),
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> asyncio.Future[Answer]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        if not self.is_open:
            answer.set_exception(ConnectionLost("the embedded broker is closed"))
            return answer
        request.id = next(self._ids)
        self._waiting[request.id] = answer
        timer = loop.call_later(timeout_s, self._expire, request.id)
        answer.add_done_callback(lambda _: timer.cancel())
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
        return await self.start(request, body, timeout_s)

    async def drain(self) -> None:
        while self._session.is_busy:
            self._progress.clear()
            await self._progress.wait()

    async def close(self) -> None:
        self.is_open = False
        self._session.close()
        for request_id in list(self._waiting):
            self._settle(request_id, ConnectionLost("the embedded broker is closed"))

    def _receive(self, reply: AnyReply, body: Sequence[Bytes] = ()) -> None:
        answer = self._waiting.pop(reply.id, None)
        if answer is None or answer.done():
            return
        if isinstance(reply, Failed):
            try:
                raise_failure(reply)
            except QuiverError as error:
                answer.set_exception(error)
            return
        answer.set_result((reply, memoryview(b"".join(body))))

    def _expire(self, request_id: int) -> None:
        self._settle(request_id, RequestTimeout())

    def _settle(self, request_id: int, error: QuiverError) -> None:
        answer = self._waiting.pop(request_id, None)
        if answer is not None and not answer.done():
            answer.set_exception(error)


class EmbeddedDialer:
    """A ``Dialer`` whose only address is a node of its own."""

    def __init__(self, config: NodeConfig, clock: Clock | None = None) -> None:
        self._config = config
        self._clock = clock
        self._node: Node | None = None
        self._starting = asyncio.Lock()

    async def dial(self, address: str) -> EmbeddedChannel:
        async with self._starting:
            if self._node is None:
                node = Node(self._config, clock=self._clock)
                await node.start(listen=False)
                self._node = node
        assert self._node.services is not None
        return EmbeddedChannel(self._node.services)

    async def close(self) -> None:
        node, self._node = self._node, None
        if node is not None:
            await node.stop()


def open(folder: str | os.PathLike[str] = "./data", **client: Any) -> Client:
    """A client whose broker runs inside this process, with its data in ``folder``."""
    return Client(dialer=EmbeddedDialer(_config(folder)), **client)


def open_async(folder: str | os.PathLike[str] = "./data", **client: Any) -> AsyncClient:
    """The same for async programs; the broker runs in the event loop of the first use."""
    return AsyncClient(dialer=EmbeddedDialer(_config(folder)), **client)


def _config(folder: str | os.PathLike[str]) -> NodeConfig:
    if not structlog.is_configured():
        # A library does not print: lines go where the program's own logging sends them.
        structlog.configure(
            processors=[structlog.stdlib.add_log_level, structlog.stdlib.render_to_log_kwargs],
            logger_factory=structlog.stdlib.LoggerFactory(),
            wrapper_class=structlog.stdlib.BoundLogger,
        )
    return NodeConfig(name="embedded", data=os.fspath(folder))
