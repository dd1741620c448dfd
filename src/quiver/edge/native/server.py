"""The native protocol over TCP: frames in, frames out, each connection within its bounds.

A connection that breaks the protocol, is silent for too long or does not read its replies gets an error
where possible, is counted, and is closed. Other connections are not affected.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import cast

import structlog

from quiver import protocol
from quiver.aio import Signal, cancel_and_wait
from quiver.edge.auth.caller import Caller
from quiver.edge.auth.credentials import Credentials
from quiver.edge.auth.principal import PEER
from quiver.edge.calls.connection import require_version
from quiver.edge.limits.connections import ConnectionBound
from quiver.edge.listener import Listener, listen
from quiver.edge.services import NodeServices
from quiver.edge.session import Session
from quiver.errors import Overloaded, ProtocolError, QuiverError, Unavailable
from quiver.model.batch import Bytes
from quiver.protocol.frames import HEADER_BYTES_MAX, PREFACE, FrameAssembler, frame

_GREETING_BYTES_MAX = 64 << 10
_WRITE_HIGH_WATER = 4 << 20
_GATHERED_BYTES = 64 << 10
"""Small replies that are made together are written together, up to this many bytes."""
_SWEEP_S = 1.0
_PATIENCE_S = 1.0
"""How far ahead of its rates a caller may run before it is refused: until then it is not read from."""
_GOODBYE_S = 1.0
"""How long a shutdown waits, at the end, for clients to read what was written to them."""

logger = structlog.get_logger()


class NativeServer:
    """``bound`` is shared with the other listeners of the process."""

    def __init__(self, services: NodeServices, bound: ConnectionBound | None = None) -> None:
        self.bound = bound or ConnectionBound(services.limits.connections_max)
        self._services = services
        self._connections: set[NativeConnection] = set()
        self._servers: list[Listener] = []
        self._sweeper: asyncio.Task[None] | None = None
        self._progress = Signal()

    async def start(
        self,
        host: str,
        port: int,
        tls: ssl.SSLContext | None = None,
        *,
        reuse_port: bool = False,
    ) -> tuple[str, int]:
        """Listen, perhaps there too; the address, with the port that a 0 became."""
        server = await listen(
            lambda: NativeConnection(self._services, self),
            host,
            port,
            tls=tls,
            handshake_timeout_s=self._services.limits.handshake_timeout_s,
            room=lambda: self.bound.room,
            reuse_port=reuse_port,
        )
        self._servers.append(server)
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep())
        address = server.sockets[0].getsockname()
        return str(address[0]), int(address[1])

    def opened(self, connection: NativeConnection) -> None:
        self._connections.add(connection)
        self._services.metrics.connections_opened.inc()
        self._services.metrics.connections.set(len(self._connections))

    def progressed(self) -> None:
        """Something was answered: a shutdown may be waiting for it."""
        self._progress.wake()

    def lost(self, connection: NativeConnection) -> None:
        self._connections.discard(connection)
        self._services.metrics.connections.set(len(self._connections))
        self._progress.wake()

    async def drain(self, timeout_s: float) -> None:
        """Accept nobody new, finish what is under way, then let everybody go."""
        if not self._servers:
            return
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            connection.drain()
        await self._wait_until(lambda: all(c.is_idle for c in self._connections), timeout_s)
        for connection in list(self._connections):
            connection.say_goodbye()
        await self._wait_until(lambda: not self._connections, _GOODBYE_S)
        for connection in list(self._connections):
            connection.abort()
        await self._wait_until(lambda: not self._connections, _GOODBYE_S)
        await cancel_and_wait(self._sweeper)

    async def _wait_until(self, reached: Callable[[], bool], timeout_s: float) -> None:
        timer = asyncio.create_task(self._services.clock.sleep(timeout_s))
        while not reached() and not timer.done():
            await self._progress.wait_or(timer)
        timer.cancel()

    async def _sweep(self) -> None:
        """Once a second, look after every connection's deadlines."""
        while True:
            await self._services.clock.sleep(_SWEEP_S)
            now = self._services.clock.monotonic()
            self._services.authority.audit.flush(now)
            for connection in list(self._connections):
                try:
                    connection.check(now)
                except Exception as error:
                    logger.error("connection failed unexpectedly", exc_info=error)
                    connection.abort()


class NativeConnection(asyncio.BufferedProtocol):
    def __init__(self, services: NodeServices, server: NativeServer) -> None:
        self._services = services
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._session = Session(services, self._reply, on_progress=self._on_progress)
        self._frames = FrameAssembler(_GREETING_BYTES_MAX, HEADER_BYTES_MAX)
        self._preface = bytearray()
        self._preface_buffer = bytearray(len(PREFACE))
        self._greeted = False
        self._is_counted = False
        self._reading = True
        self._resuming = False
        self._gathered: list[Bytes] = []
        self._gathered_bytes = 0
        self._unwritten: list[protocol.Received] = []
        """Messages in what is gathered."""
        self._opened = self._last_request = self._frame_began = services.clock.monotonic()
        self._unread_since: float | None = None
        self._closed_at: float | None = None

    # ------------------------------------------------------------------ asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._server.bound.enter(self, self._refuse_overloaded):
            self._refuse_overloaded()
            return
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH_WATER)
        self._server.opened(self)

    def connection_lost(self, error: Exception | None) -> None:
        if self._closed_at is None:
            self._count_close("lost" if error else "client" if self._is_between else "cut_frame")
        self._transport = None
        self._session.close()
        self._server.bound.leave(self)
        if self._is_counted:
            self._session.caller.disconnect()
        self._frames.drop()  # it may be long until the collector finds what is left of a connection
        self._server.lost(self)

    def pause_writing(self) -> None:
        self._unread_since = self._services.clock.monotonic()
        self._session.pause_sending()
        self._pause_if_busy()

    def resume_writing(self) -> None:
        self._unread_since = None
        self._session.resume_sending()

    def get_buffer(self, _: int) -> memoryview:
        if len(self._preface) < len(PREFACE):
            return memoryview(self._preface_buffer)[len(self._preface) :]
        return self._frames.buffer()

    def buffer_updated(self, count: int) -> None:
        try:
            if len(self._preface) < len(PREFACE):
                self._take_preface(count)
            else:
                self._take_frames(count)
        except QuiverError as error:
            self._refuse(error)
        except Exception as error:
            logger.error("connection failed unexpectedly", exc_info=error)
            self._refuse(Unavailable("the connection failed in the node; see its log"))

    # ------------------------------------------------------------------ requests and replies

    @property
    def _is_between(self) -> bool:
        """Whether nothing has come that waits for its other half."""
        return len(self._preface) in (0, len(PREFACE)) and self._frames.is_between_frames

    def _take_preface(self, count: int) -> None:
        begin = len(self._preface)
        self._preface += self._preface_buffer[begin : begin + count]
        if not PREFACE.startswith(bytes(self._preface)):
            raise ProtocolError(
                "this is Quiver's native port, and the bytes are not the native protocol"
            )

    def _take_frames(self, count: int) -> None:
        """Take what came, until that is enough to do: the rest is taken when there is less."""
        if self._frames.is_between_frames:
            self._frame_began = self._services.clock.monotonic()
        for header, body in self._frames.received(count):
            self._take(header, body)
            if self._closed_at is not None or self._pause_if_busy():
                return

    def _take(self, header: memoryview, body: memoryview) -> None:
        self._last_request = self._frame_began = self._services.clock.monotonic()
        try:
            request = protocol.decode_request(header)
        except protocol.BadRequest as bad:
            self._services.metrics.errors.labels(bad.reply.code).inc()
            self._reply(bad.reply)
            if not self._greeted:
                self.close(bad.reply.code)
            return
        if not self._greeted and not self._greet(request):
            return
        self._session.receive(request, body, len(header))

    def _greet(self, request: protocol.AnyRequest) -> bool:
        if not isinstance(request, protocol.Hello):
            raise ProtocolError("the first request must be hello")
        try:
            require_version(request)
            self._admit(request.token)
        except QuiverError as error:
            self._refuse(error, request.id)
            return False
        self._greeted = True
        self._frames.frame_bytes_max = self._services.limits.request_bytes_max
        return True

    def _admit(self, token: str | None) -> None:
        """From now on this is a conversation with whomever the token or the certificate names."""
        assert self._transport is not None
        authority, clock = self._services.authority, self._services.clock
        peer = self._transport.get_extra_info("peername")
        address = str(peer[0]) if peer else ""
        certificate = self._transport.get_extra_info("peercert")
        principal = authority.authenticate(
            Credentials(token=token, certificate=certificate, is_native=True, address=address)
        )
        caller = Caller(
            authority,
            clock,
            principal,
            address=address,
            patience_s=_PATIENCE_S,
            peer_secret=token if principal is PEER else None,
        )
        caller.connect()
        self._session.caller = caller
        self._is_counted = True
        self._server.bound.admit(self)

    def _reply(self, reply: protocol.AnyReply, body: Sequence[Bytes] = ()) -> None:
        """Send a reply, together with all that are made in this moment: each write wakes the client."""
        buffers = frame(protocol.encode(reply), body)
        if not self._gathered:
            asyncio.get_running_loop().call_soon(self._write)
        self._gathered += buffers
        self._gathered_bytes += sum(map(len, buffers))
        if isinstance(reply, protocol.Received):
            self._unwritten.append(reply)
        if self._gathered_bytes > _GATHERED_BYTES:
            self._write()

    def _write(self) -> None:
        buffers, self._gathered, self._gathered_bytes = self._gathered, [], 0
        unwritten, self._unwritten = self._unwritten, []
        if self._transport is None or self._transport.is_closing():
            for received in unwritten:
                self._session.requeue(received)
        elif buffers:
            self._transport.writelines(buffers)

    def _pause_if_busy(self) -> bool:
        if self._reading and self._session.is_busy and self._transport is not None:
            self._reading = False
            self._transport.pause_reading()
        return not self._reading

    def _on_progress(self) -> None:
        self._server.progressed()
        if not self._reading and not self._resuming and not self._session.is_busy:
            self._resuming = True
            asyncio.get_running_loop().call_soon(self._read_again)

    def _read_again(self) -> None:
        """Take what had come before the pause, then go on reading unless that was enough."""
        self._resuming = False
        if self._transport is None or self._closed_at is not None or self._session.is_busy:
            return
        self._reading = True
        self._frame_began = self._services.clock.monotonic()
        self.buffer_updated(0)
        if self._reading and self._closed_at is None:
            self._transport.resume_reading()

    def _refuse(self, error: QuiverError, request_id: int = 0) -> None:
        """Say what was wrong, as far as the other side can understand it, and hang up."""
        self._services.metrics.errors.labels(error.code).inc()
        self._reply(protocol.failure(request_id, error))
        self.close(error.code)

    def _refuse_overloaded(self) -> None:
        self._refuse(Overloaded("the node has as many connections as it allows; try again later"))

    # ------------------------------------------------------------------ deadlines

    def check(self, now: float) -> None:
        """Close the connection if it has kept the node waiting for too long."""
        limits = self._services.limits
        if self._closed_at is not None:
            if now - self._closed_at > limits.write_timeout_s:
                self.abort()
            return
        self._session.expire(now)
        if self._greeted:
            try:
                self._session.caller.require_standing()
            except QuiverError as error:
                self._refuse(error)
                return
        if not self._greeted:
            if now - self._opened > limits.handshake_timeout_s:
                self.close("handshake_timeout")
        elif self._unread_since is not None:
            if now - self._unread_since > limits.write_timeout_s:
                self.close("unread_replies")
                self.abort()
        elif not self._frames.is_between_frames:
            if self._reading and now - self._frame_began > limits.frame_timeout_s:
                self.close("slow_frame")
        elif self._session.is_idle and now - self._last_request > limits.idle_timeout_s:
            self.close("idle")
        elif now - self._last_request > _SWEEP_S:
            self._frames.rest()

    @property
    def is_idle(self) -> bool:
        return self._session.is_idle

    def drain(self) -> None:
        self._session.drain()

    def say_goodbye(self) -> None:
        self._session.give_up()
        self.close("shutdown")

    def close(self, reason: str) -> None:
        """Take nothing more; what was answered is still sent, if the client reads it in time."""
        if self._transport is None or self._closed_at is not None:
            return
        self._write()
        self._closed_at = self._services.clock.monotonic()
        self._count_close(reason)
        self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _count_close(self, reason: str) -> None:
        self._services.metrics.connections_closed.labels(reason).inc()
        logger.debug("connection closed", reason=reason)
