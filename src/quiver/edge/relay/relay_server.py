"""The native protocol of a forwarder: for each connection of a client it opens one to a node.

The client names the node in ``hello``, or takes any. The token is passed on, so the node knows whose
connection it is and checks each request. After the greeting bytes are passed on as they come: a slow
reader slows the other side down, and the end of one connection is the end of the other. So a node
notices at once that a client has ended, and a client that its node has.
"""

from __future__ import annotations

import asyncio
import resource
import ssl
import sys

import msgspec
import structlog

from quiver import protocol
from quiver.aio import Signal, TaskSet, cancel_and_wait
from quiver.client.transport.dialer import connect
from quiver.config import Limits
from quiver.edge.limits.forwarded_logins import ForwardedLogins
from quiver.edge.listener import Listener, listen
from quiver.edge.principal_clients import NO_TOKEN
from quiver.edge.relay.relay_end import RelayEnd
from quiver.edge.relay.upstream_nodes import UpstreamNodes
from quiver.errors import (
    NodeGone,
    Overloaded,
    ProtocolError,
    QuiverError,
    Unavailable,
    error_from,
)
from quiver.metrics import NodeMetrics
from quiver.model.clock import Clock
from quiver.protocol.frames import PREFACE, frame

_SOON_S = 3.0
"""How long one node is waited for while there may be another."""
_ANSWERS_S = 0.5
"""How long a shutdown waits for answers to what clients have asked."""
_GOODBYE_S = 1.0

logger = structlog.get_logger()


class RelayServer:
    """``tls`` is what the nodes are reached with. ``logins`` bounds wrong tokens by address."""

    def __init__(
        self,
        name: str,
        nodes: UpstreamNodes,
        limits: Limits,
        metrics: NodeMetrics,
        clock: Clock,
        *,
        logins: ForwardedLogins,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._name = name
        self._nodes = nodes
        self._limits = limits
        self._metrics = metrics
        self._clock = clock
        self._logins = logins
        self._tls = tls
        self._connections_max = min(limits.connections_max, _most_connections())
        self._from_clients = metrics.forwarded_bytes.labels("to_nodes").inc
        self._from_nodes = metrics.forwarded_bytes.labels("to_clients").inc
        self._clients: dict[RelayEnd, RelayEnd | None] = {}
        """Each with the node that it is connected with."""
        self._opening = TaskSet()
        self._server: Listener | None = None
        self._ended = Signal()

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> tuple[str, int]:
        """Listen; the address, with the port that a 0 became."""
        limits = self._limits
        self._server = await listen(
            self._accept,
            host,
            port,
            tls=tls,
            handshake_timeout_s=limits.handshake_timeout_s,
            room=lambda: self._connections_max - len(self._clients),
        )
        address = self._server.sockets[0].getsockname()
        return str(address[0]), int(address[1])

    @property
    def connection_count(self) -> int:
        return len(self._clients)

    def _accept(self) -> RelayEnd:
        return RelayEnd(PREFACE, self._from_clients, made=self._made, lost=self._lost)

    def _made(self, client: RelayEnd) -> None:
        self._clients[client] = None
        self._metrics.connections_opened.inc()
        self._metrics.connections.set(len(self._clients))
        self._opening.start(self._open(client))

    def _lost(self, client: RelayEnd) -> None:
        del self._clients[client]
        self._metrics.connections_closed.labels("lost" if client.has_failed else "closed").inc()
        self._metrics.connections.set(len(self._clients))
        self._ended.wake()

    # ------------------------------------------------------------------ greeting

    async def _open(self, client: RelayEnd) -> None:
        """Connect a client with its node, or tell it why that cannot be."""
        request_id = 0
        try:
            async with asyncio.timeout(self._limits.handshake_timeout_s):
                hello = _hello_in(await client.greeting())
                request_id = hello.id
                await self._connect(client, hello)
        except TimeoutError:
            reason = "the node did not answer" if request_id else "the client did not say hello"
            self._refuse(client, request_id, NodeGone(f"{reason} in time"))
        except QuiverError as error:
            self._refuse(client, request_id, error)
        except Exception as error:
            logger.error("connection failed unexpectedly", exc_info=error)
            self._refuse(client, request_id, Unavailable("the forwarder failed; see its log"))

    async def _connect(self, client: RelayEnd, hello: protocol.Hello) -> None:
        if len(self._clients) > self._connections_max:
            raise Overloaded("the forwarder has as many connections as it allows; try again later")
        async with self._logins.asking(client.address):
            node, welcome = await self._reach(hello)
        if client not in self._clients:  # it has left meanwhile
            node.close(is_cut=True)
            return
        self._clients[client] = node
        shown = msgspec.structs.replace(welcome, id=hello.id, forwards=True, nodes=[])
        client.write(b"".join(frame(protocol.encode(shown))))
        node.join(client)
        client.join(node)

    async def _reach(self, hello: protocol.Hello) -> tuple[RelayEnd, protocol.Welcome]:
        """The node that the client asks for, or any."""
        if not hello.node:
            return await self._greet_any(hello)
        if hello.node not in self._nodes:
            node, _ = await self._greet_any(hello)  # it names the nodes that there are now
            node.close()
            if hello.node not in self._nodes:
                raise NodeGone(f"{hello.node[:200]} is not the address of a node of this cluster")
        return await self._greet(hello.node, hello)

    async def _greet_any(self, hello: protocol.Hello) -> tuple[RelayEnd, protocol.Welcome]:
        """The first node that answers."""
        failure: QuiverError = NodeGone("there is no node to connect with")
        for address in self._nodes.in_turn():
            try:
                async with asyncio.timeout(_SOON_S):
                    return await self._greet(address, hello)
            except TimeoutError:
                failure = NodeGone(f"{address} did not answer within {_SOON_S:g} s")
            except QuiverError as error:
                if not error.retryable:
                    raise
                failure = error
        raise failure

    async def _greet(
        self, address: str, hello: protocol.Hello
    ) -> tuple[RelayEnd, protocol.Welcome]:
        """Connect to a node as the client. ``NodeGone`` if it cannot be reached."""
        try:
            node = await connect(lambda: RelayEnd(b"", self._from_nodes), address, self._tls)
        except QuiverError as error:
            raise NodeGone(f"the forwarder {self._name} {error.message}") from error
        passed = msgspec.structs.replace(
            hello, token=hello.token or NO_TOKEN, node="", forwarder=self._name
        )
        try:
            node.write(PREFACE + b"".join(frame(protocol.encode(passed))))
            reply = protocol.decode_reply(await node.greeting())
        except BaseException as error:
            node.close(is_cut=True)
            if isinstance(error, QuiverError):
                raise NodeGone(f"{address} did not answer as a node: {error.message}") from error
            raise
        if isinstance(reply, protocol.Welcome):
            self._nodes.learn(reply.nodes)
            return node, reply
        node.close()
        if isinstance(reply, protocol.Failed):
            raise error_from(reply.code, reply.message, reply.details)
        raise ProtocolError(f"{address} answered hello with {type(reply).__name__}")

    def _refuse(self, client: RelayEnd, request_id: int, error: QuiverError) -> None:
        self._metrics.errors.labels(error.code).inc()
        client.write(b"".join(frame(protocol.encode(protocol.failure(request_id, error)))))
        client.close()

    # ------------------------------------------------------------------ shutting down

    async def drain(self, timeout_s: float) -> None:
        """Accept nobody new and read no more requests, pass answers on for a moment, then close."""
        if self._server is None:
            return
        self._server.close()
        await cancel_and_wait(*self._opening)
        for client in self._clients:
            client.drain()
        if self._clients:
            await self._until_nobody(min(timeout_s, _ANSWERS_S))
        for client, node in list(self._clients.items()):
            client.close()
            if node is not None:
                node.close()
        await self._until_nobody(_GOODBYE_S)
        for client in list(self._clients):
            client.close(is_cut=True)

    async def _until_nobody(self, timeout_s: float) -> None:
        timer = asyncio.create_task(self._clock.sleep(timeout_s))
        while self._clients and not timer.done():
            await self._ended.wait_or(timer)
        timer.cancel()


def _most_connections() -> int:
    """Each has two sockets, and half of the files are left to HTTP."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if files == resource.RLIM_INFINITY else max(1, files // 4)


def _hello_in(header: memoryview) -> protocol.Hello:
    try:
        hello = protocol.decode_request(header)
    except protocol.BadRequest as bad:
        reply = bad.reply
        raise error_from(reply.code, reply.message, reply.details) from bad
    if not isinstance(hello, protocol.Hello):
        raise ProtocolError("the first request must be hello")
    return hello
