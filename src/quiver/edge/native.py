"""The native protocol over TCP: frames in, frames out, each connection within its bounds.

A connection that sends something else than the protocol, or nothing for too long, or does not read
its replies, is told so where that is possible, counted, and closed; no other connection notices.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import cast

import structlog

from quiver.edge.session import NodeServices, Session
from quiver.errors import ProtocolError, QuiverError
from quiver.model import wire
from quiver.model.batch import Bytes
from quiver.model.frames import PREFACE, FrameAssembler, frame

_GREETING_BYTES_MAX = 64 << 10
_WRITE_HIGH_WATER = 4 << 20
_SWEEP_S = 1.0

logger = structlog.get_logger()


class NativeServer:
    def __init__(self, services: NodeServices) -> None:
        self._services = services
        self._connections: set[NativeConnection] = set()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None
        services.connection_count = lambda: len(self._connections)

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; the address, with the port that a 0 became."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: NativeConnection(self._services, self._connections), host, port, backlog=1024
        )
        self._sweeper = asyncio.create_task(self._sweep())
        address = self._server.sockets[0].getsockname()
        return str(address[0]), int(address[1])

    async def drain(self, timeout_s: float) -> None:
        """Accept nobody new, finish what is under way, then let everybody go."""
        if self._server is None:
            return
        self._server.close()
        connections = list(self._connections)
        await asyncio.gather(*(connection.drain(timeout_s) for connection in connections))
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.wait([self._sweeper])
        for connection in connections:
            connection.close("shutdown")
        await self._server.wait_closed()

    async def _sweep(self) -> None:
        """Once a second, look after every connection's deadlines."""
        while True:
            await self._services.clock.sleep(_SWEEP_S)
            now = self._services.clock.monotonic()
            for connection in list(self._connections):
                connection.check(now)


class NativeConnection(asyncio.BufferedProtocol):
    def __init__(self, services: NodeServices, connections: set[NativeConnection]) -> None:
        self._services = services
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._session: Session | None = None
        self._frames = FrameAssembler(_GREETING_BYTES_MAX)
        self._preface = bytearray()
        self._preface_buffer = bytearray(len(PREFACE))
        self._greeted = False
        self._reading = True
        self._last_request = self._frame_began = services.clock.monotonic()
        self._unread_since: float | None = None

    # ------------------------------------------------------------------ asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if len(self._connections) >= self._services.limits.connections_max:
            self.close("too_many_connections")
            return
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH_WATER)
        self._connections.add(self)
        self._services.metrics.connections_opened.inc()
        self._services.metrics.connections.set(len(self._connections))
        self._session = Session(self._services, self._reply)
        self._session.on_progress = self._read_again

    def connection_lost(self, _: Exception | None) -> None:
        self._connections.discard(self)
        self._services.metrics.connections.set(len(self._connections))
        self._transport = None
        if self._session is not None:
            self._session.close()

    def pause_writing(self) -> None:
        self._unread_since = self._services.clock.monotonic()
        if self._session is not None:
            self._session.pause_sending()

    def resume_writing(self) -> None:
        self._unread_since = None
        if self._session is not None:
            self._session.resume_sending()

    def get_buffer(self, _: int) -> memoryview:
        if len(self._preface) < len(PREFACE):
            return memoryview(self._preface_buffer)[len(self._preface) :]
        return self._frames.buffer()

    def buffer_updated(self, count: int) -> None:
        try:
            if len(self._preface) < len(PREFACE):
                self._take_preface(count)
                return
            if self._frames.is_between_frames:
                self._frame_began = self._services.clock.monotonic()
            for header, body in self._frames.received(count):
                self._take(header, body)
                self._frame_began = self._services.clock.monotonic()
        except QuiverError as error:
            self._refuse(error)

    # ------------------------------------------------------------------ requests and replies

    def _take_preface(self, count: int) -> None:
        begin = len(self._preface)
        self._preface += self._preface_buffer[begin : begin + count]
        if not PREFACE.startswith(bytes(self._preface)):
            raise ProtocolError("this port speaks Quiver's native protocol, and that was not it")

    def _take(self, header: memoryview, body: memoryview) -> None:
        if self._transport is None or self._session is None:
            return
        self._last_request = self._services.clock.monotonic()
        try:
            request = wire.decode_request(header)
        except wire.BadRequest as bad:
            self._services.metrics.errors.labels(bad.reply.code).inc()
            self._reply(bad.reply)
            return
        if not self._greeted:
            self._greet(request)
        self._session.receive(request, body)
        if self._reading and self._session.is_busy:
            self._reading = False
            self._transport.pause_reading()

    def _greet(self, request: wire.AnyRequest) -> None:
        if not isinstance(request, wire.Hello):
            raise ProtocolError("the first request must be hello")
        self._greeted = True
        self._frames.frame_bytes_max = self._services.limits.request_bytes_max

    def _reply(self, reply: wire.AnyReply, body: Sequence[Bytes] = ()) -> None:
        if self._transport is not None:
            self._transport.writelines(frame(wire.encode(reply), body))

    def _read_again(self) -> None:
        session, transport = self._session, self._transport
        if (
            not self._reading
            and transport is not None
            and session is not None
            and not session.is_busy
        ):
            self._reading = True
            transport.resume_reading()

    def _refuse(self, error: QuiverError) -> None:
        """Say what was wrong, as far as the other side can understand it, and hang up."""
        self._services.metrics.errors.labels(error.code).inc()
        self._reply(wire.failure(0, error))
        self.close(error.code)

    # ------------------------------------------------------------------ deadlines

    def check(self, now: float) -> None:
        """Close the connection if it has kept the node waiting for too long."""
        limits = self._services.limits
        if self._session is None:
            return
        self._session.expire(now)
        if not self._greeted:
            if now - self._last_request > limits.handshake_timeout_s:
                self.close("handshake_timeout")
        elif self._unread_since is not None and now - self._unread_since > limits.write_timeout_s:
            self.close("unread_replies", at_once=True)
        elif not self._frames.is_between_frames:
            if self._reading and now - self._frame_began > limits.frame_timeout_s:
                self.close("slow_frame")
        elif self._session.is_idle and now - self._last_request > limits.idle_timeout_s:
            self.close("idle")

    async def drain(self, timeout_s: float) -> None:
        if self._session is not None:
            await self._session.drain(timeout_s)

    def close(self, reason: str, *, at_once: bool = False) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._services.metrics.connections_closed.labels(reason).inc()
        logger.debug("connection closed", reason=reason)
        if at_once:
            self._transport.abort()
        else:
            self._transport.close()
