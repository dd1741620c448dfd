"""A channel over a socket: the native protocol on the client's side.

Requests are written at once, up to the number of unanswered ones that the node allows; the rest wait in
order, bounded. Every request ends with its answer, its timeout, or the connection. A node that owes an
answer and does not reply to a ping is disconnected.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, cast

from quiver.aio import Signal, retrieve_exception
from quiver.client.transport.channel import CALL_TIMEOUT_S, Answer, StreamListener
from quiver.client.transport.unread import OnlyWaits, read, return_of
from quiver.errors import (
    ConnectionLost,
    MessageTooLarge,
    Overloaded,
    ProtocolError,
    QuiverError,
    RequestTimeout,
    Unauthenticated,
    error_from,
)
from quiver.model.batch import Bytes
from quiver.protocol import (
    PROTOCOL_VERSION,
    Abandon,
    AnyReply,
    AnyRequest,
    Failed,
    Hello,
    Ping,
    Welcome,
    decode_reply,
    encode,
)
from quiver.protocol.frames import FRAME_BYTES_MAX, PREFACE, FrameAssembler, frame
from quiver.version import __version__

WAITING_MAX = 8192
"""How many requests may wait because the node has as many unanswered as it allows."""
_WRITE_HIGH, _WRITE_LOW = 4 << 20, 1 << 20
_GATHERED_BYTES = 64 << 10
"""Small requests that are started together are written together, up to this many bytes."""
_TRUSTED_BYTES = 16 << 20
"""What a node says of a reply's size is believed up to this much: about what is asked for at most."""
_CLOSE_TIMEOUT_S = 1.0
_QUIET_S, _SILENT_S, _LATE_S = 2.0, 3.0, 0.5
"""A node that owes answers and says nothing is asked whether it is there, then given so long."""
_LISTEN_S_MIN = 0.001
"""A shorter time may be too little to make a difference to the clock."""


class _Call(NamedTuple):
    """A request that has no answer yet. ``buffers`` only while it waits to be written."""

    future: asyncio.Future[Answer]
    started: float
    deadline: float
    buffers: list[Bytes]
    waits: OnlyWaits | None
    """The request itself, if the node is to be told when nobody waits for its answer any more."""


class Connection(asyncio.BufferedProtocol):
    """A ``Channel`` over one socket; ``greet`` comes first. Made by ``SocketDialer``."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.is_forwarded = False
        """Whether it goes through a forwarder: the next one there may be with another node."""
        self._loop = asyncio.get_running_loop()
        self._assembler = FrameAssembler(FRAME_BYTES_MAX, trusted_bytes=_TRUSTED_BYTES)
        self._transport: asyncio.Transport | None = None
        self._sent: dict[int, _Call] = {}
        self._waiting: dict[int, _Call] = {}
        self._streams: dict[int, StreamListener] = {}
        self._abandoned: dict[int, OnlyWaits] = {}
        """Requests whose answer nobody waits for, and which may still come."""
        self._leaving: set[asyncio.Future[Answer]] = set()
        """What the node is told about answers that nobody reads. ``close`` waits for it."""
        self._last_id = 0
        self._requests_max = 1
        self._frame_bytes_max = FRAME_BYTES_MAX
        self._heard = 0.0
        self._asked_at: float | None = None
        self._listening: asyncio.TimerHandle | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._failure: QuiverError | None = None
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._paused = False
        self._drained = Signal()
        self._gathered: list[Bytes] = []
        self._gathered_bytes = 0

    # ------------------------------------------------------------------ channel

    @property
    def is_open(self) -> bool:
        return self._failure is None and self._transport is not None

    @property
    def is_congested(self) -> bool:
        return self._paused or bool(self._waiting)

    def start(
        self,
        request: AnyRequest,
        body: Sequence[Bytes] = (),
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> asyncio.Future[Answer]:
        future: asyncio.Future[Answer] = self._loop.create_future()
        request.id = self._last_id = self._last_id + 1
        buffers = frame(encode(request), body)
        refusal = self._refusal(buffers)
        if refusal is not None:
            future.set_exception(refusal)
            return future
        now = self._loop.time()
        waits = request if isinstance(request, OnlyWaits) else None
        call = _Call(future, now, now + timeout_s, [], waits)
        if len(self._sent) < self._requests_max and not self._waiting:
            self._sent[request.id] = call
            self._send(buffers)
        else:
            self._waiting[request.id] = call._replace(buffers=buffers)
        self._ring_at(call.deadline)
        if self._listening is None:
            self._listen_again(_QUIET_S)
        if waits is not None:
            future.add_done_callback(partial(self._abandon_if_cancelled, waits))
        return future

    def tell(self, request: AnyRequest) -> None:
        if self._failure is None:
            request.id = self._last_id = self._last_id + 1
            self._send(frame(encode(request)))

    def open_stream(
        self, request: AnyRequest, listener: StreamListener, timeout_s: float = CALL_TIMEOUT_S
    ) -> asyncio.Future[Answer]:
        future = self.start(request, timeout_s=timeout_s)
        if not future.done():
            self._streams[request.id] = listener
        return future

    def close_stream(self, request_id: int) -> None:
        self._streams.pop(request_id, None)

    async def call(
        self,
        request: AnyRequest,
        body: Sequence[Bytes] = (),
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Answer:
        answer = self.start(request, body, timeout_s)
        if not isinstance(request, OnlyWaits):
            return await answer
        return await read(answer, partial(self._return_unread, request))

    async def drain(self) -> None:
        while self.is_congested:
            if self._failure is not None:
                raise self._failure.with_traceback(None)
            await self._drained.wait()

    async def close(self) -> None:
        try:
            await self._leave()
        finally:
            self._fail(ConnectionLost(f"the connection to {self.address} was closed"))
            if self._transport is not None:
                self._write_gathered()
                self._transport.close()
        if self._transport is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await asyncio.shield(self._closed)
                return
            self._transport.abort()
            await self._closed

    async def greet(self, timeout_s: float, token: str | None = None, node: str = "") -> Welcome:
        """Agree on the protocol, and say who we are; the first thing on a connection.

        ``node`` is the address of the node that a forwarder connects us with.
        """
        hello = Hello(
            versions=[PROTOCOL_VERSION],
            client=f"quiver-python/{__version__}",
            token=token,
            node=node,
        )
        answer = self.start(hello, timeout_s=timeout_s)
        welcome, _ = await answer
        if not isinstance(welcome, Welcome):
            raise ProtocolError(f"{self.address} answered hello with {type(welcome).__name__}")
        self.is_forwarded = welcome.forwards
        self._requests_max = max(1, welcome.requests_max)
        self._frame_bytes_max = welcome.frame_bytes_max
        self._send_waiting()
        return welcome

    def _refusal(self, buffers: list[Bytes]) -> QuiverError | None:
        if self._failure is not None:
            return self._failure
        size = sum(map(len, buffers))
        if size > self._frame_bytes_max:
            return MessageTooLarge(
                f"the request has {size:,} bytes, more than the {self._frame_bytes_max:,} that "
                f"{self.address} accepts",
                size=size,
                limit=self._frame_bytes_max,
            )
        if len(self._waiting) >= WAITING_MAX:
            return Overloaded(
                f"{WAITING_MAX:,} requests already wait for {self.address}, the most allowed"
            )
        return None

    # ------------------------------------------------------------------ protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH, low=_WRITE_LOW)
        _keep_alive(self._transport)
        self._transport.write(PREFACE)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._assembler.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._heard = self._loop.time()
        try:
            for header, body in self._assembler.received(nbytes):
                self._answered(decode_reply(header), body)
        except (ProtocolError, Unauthenticated) as error:
            self._give_up(error)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        reason = f": {exc}" if exc is not None else ""
        self._fail(
            ConnectionLost(
                f"the connection to {self.address} was lost before the answer{reason}; "
                "the request may have been carried out"
            )
        )
        if not self._closed.done():
            self._closed.set_result(None)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._wake_drains()

    # ------------------------------------------------------------------ requests

    def _send(self, buffers: list[Bytes]) -> None:
        """Send a request, together with all that are started in this moment."""
        if not self._gathered:
            self._loop.call_soon(self._write_gathered)
        self._gathered += buffers
        self._gathered_bytes += sum(map(len, buffers))
        if self._gathered_bytes > _GATHERED_BYTES:
            self._write_gathered()

    def _write_gathered(self) -> None:
        buffers, self._gathered, self._gathered_bytes = self._gathered, [], 0
        if buffers:
            self._write(buffers)

    def _write(self, buffers: list[Bytes]) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(buffers)

    def _answered(self, reply: AnyReply, body: memoryview) -> None:
        call = self._sent.pop(reply.id, None)
        if call is None:
            if reply.id == 0 and isinstance(reply, Failed):
                if reply.code == Unauthenticated.code:
                    raise Unauthenticated(reply.message)
                raise ProtocolError(f"{self.address} closed the connection: {reply.message}")
            listener = self._streams.get(reply.id)
            if listener is None:
                self._return_unread(self._abandoned.pop(reply.id, None), reply)
            elif isinstance(reply, Failed):
                del self._streams[reply.id]
                listener.ended(error_from(reply.code, reply.message, reply.details))
            else:
                listener.received(reply, body)
            return
        if call.future.done():
            self._return_unread(call.waits, reply)
        elif isinstance(reply, Failed):
            self._streams.pop(reply.id, None)
            call.future.set_exception(error_from(reply.code, reply.message, reply.details))
        else:
            call.future.set_result((reply, body))
        if self._waiting:
            self._send_waiting()

    def _send_waiting(self) -> None:
        while self._waiting and len(self._sent) < self._requests_max:
            request_id = next(iter(self._waiting))
            call = self._waiting.pop(request_id)
            if not call.future.done():
                self._sent[request_id] = call._replace(buffers=[])
                self._send(call.buffers)
        self._wake_drains()

    def _wake_drains(self) -> None:
        if not self.is_congested or self._failure is not None:
            self._drained.wake()

    # ------------------------------------------------------------------ answers nobody waits for

    def _abandon_if_cancelled(self, request: OnlyWaits, answer: asyncio.Future[Answer]) -> None:
        if not answer.cancelled() or self._waiting.pop(request.id, None) is not None:
            return
        if self._sent.pop(request.id, None) is not None and self._failure is None:
            request_id = request.id
            self._abandoned[request_id] = request
            ended = self._tell_leaving(Abandon(request=request_id))
            ended.add_done_callback(lambda _: self._abandoned.pop(request_id, None))

    def _return_unread(self, request: AnyRequest | None, reply: AnyReply) -> None:
        """Let others have the messages of an answer. If it fails, their leases end by themselves."""
        back = return_of(request, reply)
        if back is not None and self._failure is None:
            self._tell_leaving(back)

    def _tell_leaving(self, request: AnyRequest) -> asyncio.Future[Answer]:
        told = self.start(request)
        told.add_done_callback(retrieve_exception)
        self._leaving.add(told)
        told.add_done_callback(self._leaving.discard)
        return told

    async def _leave(self) -> None:
        """Wait, within a bound, until the node knows which answers nobody reads."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                while self._leaving and self._failure is None:
                    await asyncio.wait(self._leaving)

    # ------------------------------------------------------------------ endings

    def _ring_at(self, deadline: float) -> None:
        """See to it that the alarm rings no later than this."""
        if self._alarm is None or deadline < self._alarm.when():
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm = self._loop.call_at(deadline, self._ring)

    def _ring(self) -> None:
        """Time out what is overdue, and set the alarm for what is next."""
        self._alarm = None
        now, silent, following = self._loop.time(), False, float("inf")
        for calls in (self._sent, self._waiting):
            for call in calls.values():
                if call.future.done():
                    continue
                if call.deadline > now:
                    following = min(following, call.deadline)
                    continue
                silent = silent or self._heard < call.started
                call.future.set_exception(
                    RequestTimeout(
                        f"{self.address} did not answer within {call.deadline - call.started:g} s; "
                        "the request may or may not have been carried out"
                    )
                )
        if silent:
            self._give_up(ConnectionLost(f"{self.address} has stopped answering"))
        elif following < float("inf"):
            self._ring_at(following)

    def _listen_again(self, after_s: float) -> None:
        after_s = max(_LISTEN_S_MIN, after_s)
        self._listening = self._loop.call_later(after_s, self._listen, self._loop.time() + after_s)

    def _listen(self, due: float) -> None:
        """A node that owes answers must say something, or answer a ping."""
        self._listening = None
        now = self._loop.time()
        owed = [call.started for call in self._sent.values() if not call.future.done()]
        if not owed or self._failure is not None:
            self._asked_at = None
            return
        since = max(self._heard, min(owed))
        if self._asked_at is not None and self._heard >= self._asked_at:
            self._asked_at = None
        if now - due > _LATE_S:
            self._listen_again(_LATE_S)  # it was we who did not listen
        elif self._asked_at is not None:
            if now - self._asked_at >= _SILENT_S:
                self._give_up(ConnectionLost(f"{self.address} has stopped answering"))
            else:
                self._listen_again(_SILENT_S - (now - self._asked_at))
        elif now - since < _QUIET_S:
            self._listen_again(_QUIET_S - (now - since))
        elif len(self._sent) < self._requests_max and not self._waiting:
            self._asked_at = now
            self._listen_again(_SILENT_S)
            self.start(Ping(), timeout_s=2 * _SILENT_S).add_done_callback(retrieve_exception)
        else:
            self._listen_again(_QUIET_S)

    def _give_up(self, error: QuiverError) -> None:
        self._fail(error)
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, error: QuiverError) -> None:
        """Nothing more can be asked or answered; the first reason is the one that is told."""
        if self._failure is not None:
            return
        self._failure = error
        for timer in (self._alarm, self._listening):
            if timer is not None:
                timer.cancel()
        self._alarm = self._listening = None
        unanswered = [*self._sent.values(), *self._waiting.values()]
        self._sent, self._waiting = {}, {}
        for call in unanswered:
            if not call.future.done():
                call.future.set_exception(error)
        streams, self._streams = self._streams, {}
        for listener in streams.values():
            listener.ended(error)
        self._wake_drains()


def _keep_alive(transport: asyncio.Transport) -> None:
    """Have the system notice a peer that is gone without a word."""
    sock = transport.get_extra_info("socket")
    if sock is None:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
