"""An HTTP connection with bounds that uvicorn does not have.

Headers are bounded in size and time, and bodies in time, also if their request is answered already. A
client that does not read its replies is disconnected, and the number of connections is bounded.
"""

from __future__ import annotations

import asyncio
from asyncio import TimerHandle, Transport
from functools import partial
from typing import Any

import msgspec
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from quiver.config import Limits
from quiver.edge.http.problems import PROBLEM, problem_of
from quiver.edge.limits.connections import ConnectionBound
from quiver.errors import BodyTimeout, HeadersTooLarge, MalformedRequest, Overloaded, QuiverError

PIPELINE_MAX = 64
"""Requests that wait behind one that is being handled. What comes after them is not parsed yet."""
PIECE_BYTES = 4096
"""How much is parsed at a time where it may be many requests."""
_LINGER_S = 1.0
"""How long the rest of a body may take that nobody waits for: its request is answered already."""
NO_CLOSE_FRAME = 1006
"""The code of a WebSocket whose other side ended without a close frame."""
_VERSIONS = ("1.0", "1.1")


class EdgeConfig(Config):
    """uvicorn's settings, and the node's limits."""

    def __init__(self, app: Any, limits: Limits, bound: ConnectionBound) -> None:
        super().__init__(
            app,
            http=GuardedConnection,
            ws=GuardedSocket,
            ws_max_size=limits.body_bytes_max,
            ws_ping_interval=20.0,
            ws_ping_timeout=20.0,
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            interface="asgi3",
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=round(limits.idle_timeout_s),
        )
        self.limits = limits
        self.bound = bound


class _WriteDeadline:
    """Ends a connection whose other side has not read for too long."""

    def __init__(self, transport: Transport, seconds: float) -> None:
        self._transport = transport
        self._seconds = seconds
        self._timer: TimerHandle | None = None

    def start(self) -> None:
        self.stop()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._seconds, self._transport.abort)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class GuardedSocket(WebSocketsSansIOProtocol):
    """A WebSocket connection that ends if nothing it is sent is read."""

    config: EdgeConfig
    _deadline: _WriteDeadline

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._deadline = _WriteDeadline(transport, self.config.limits.write_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.stop()
        self.config.bound.leave(self.transport)
        if self.conn.close_rcvd is None:  # uvicorn does not tell this from a close frame
            self.queue.put_nowait({"type": "websocket.disconnect", "code": NO_CLOSE_FRAME})
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        self._deadline.start()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._deadline.stop()
        super().resume_writing()


class _ResponseTransport:
    """Where one response is written: its head goes with the first of its body, in one system call.

    The request refers to it. It refers to the request only until the head is there: what refers to each
    other is left to the garbage collector, which stops the node for tens of milliseconds.
    """

    __slots__ = ("_cycle", "_head", "_transport")

    def __init__(self, cycle: RequestResponseCycle, transport: Transport) -> None:
        self._transport = transport
        self._cycle: RequestResponseCycle | None = cycle
        self._head = b""
        if cycle.scope["method"] == "HEAD":
            self._cycle = None  # it has no body to wait for

    def write(self, data: bytes) -> None:
        if self._cycle is not None and self._cycle.response_started:
            self._cycle, self._head = None, data
        elif self._head:
            self._transport.writelines((self._head, data))
            self._head = b""
        else:
            self._transport.write(data)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        if self._head:
            self._transport.write(self._head)
        self._transport.close()


class GuardedConnection(HttpToolsProtocol):
    config: EdgeConfig

    def __init__(
        self,
        config: EdgeConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        limits = config.limits
        self._header_bytes_max = limits.header_bytes_max
        self._header_timeout_s = limits.handshake_timeout_s
        self._body_timeout_s = limits.frame_timeout_s
        self._write_timeout_s = limits.write_timeout_s
        self._is_in_head = True
        self._head_bytes = 0
        self._head_timer: TimerHandle | None = None
        self._body_timer: TimerHandle | None = None
        self._deadline: _WriteDeadline | None = None
        self._refusal: QuiverError | None = None
        self._unparsed = b""
        self._body_left = 0
        self._is_upgraded = False

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._deadline = _WriteDeadline(transport, self._write_timeout_s)
        bound = self.config.bound
        self.app_state = {**self.app_state, "admit": partial(bound.admit, transport)}
        certificate = transport.get_extra_info("peercert")
        if certificate:
            self.app_state["certificate"] = certificate
        if bound.enter(transport, transport.abort):
            self._expect_head()
        else:
            self._refuse(
                Overloaded(f"{bound.most:,} clients are already connected, the most allowed")
            )

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        self.config.bound.leave(self.transport)
        super().connection_lost(exc)

    def _stop_timers(self) -> None:
        self._stop_head_timer()
        self._stop_body_timer()
        if self._deadline is not None:
            self._deadline.stop()

    # ------------------------------------------------------------------ the head of a request

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(self._header_timeout_s, self._head_is_late)

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self.flow.read_paused:  # the node is late, not the client
            self._expect_head()
        else:
            self._hang_up()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def data_received(self, data: bytes) -> None:
        if self._unparsed or len(data) > PIECE_BYTES or len(self.pipeline) >= PIPELINE_MAX:
            self._unparsed += data
            self._parse_more()
        else:
            self._parse(data)

    def _parse_more(self) -> None:
        """Parse what has come, until so many requests wait that the rest waits with them."""
        data, at = self._unparsed, 0
        while at < len(data) and len(self.pipeline) < PIPELINE_MAX:
            if self._is_upgraded or self.transport.is_closing():
                at = len(data)
                break
            end = at + max(PIECE_BYTES, self._body_left)
            self._parse(data[at:end])
            at = end
        self._unparsed = data[at:]
        if self._unparsed:
            self.flow.pause_reading()

    def _parse(self, data: bytes) -> None:
        if self._is_in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._is_in_head:
            if self._head_bytes > self._header_bytes_max:
                self._refuse(self._too_large())
            elif self._head_bytes and self._head_timer is None:
                self._expect_head()  # most heads come in one piece and need no timer
            elif not self._head_bytes:
                self._expect_next()
        elif self._body_timer is None:
            self._expect_body()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_size = 0
        self._head_bytes = max(1, self._head_bytes)

    def on_url(self, url: bytes) -> None:
        self._head_size += len(url)
        if self._head_size > self._header_bytes_max:
            self._refusal = self._too_large()
            raise self._refusal
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_size += len(name) + len(value) + 4
        if self._head_size > self._header_bytes_max:
            self._refusal = self._too_large()
            raise self._refusal
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._stop_head_timer()
        if self.parser.get_http_version() not in _VERSIONS:
            raise MalformedRequest
        super().on_headers_complete()
        self._body_left = _declared_length(self.headers)
        if self.cycle is not None and self.cycle.transport is self.transport:
            response: Any = _ResponseTransport(self.cycle, self.transport)
            self.cycle.transport = response

    def on_body(self, body: bytes) -> None:
        self._body_left -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._stop_body_timer()
        self._is_in_head = True
        self._body_left = 0
        self._head_bytes = 0

    def _too_large(self) -> HeadersTooLarge:
        return HeadersTooLarge(
            f"the request line and headers may have {self._header_bytes_max:,} bytes"
        )

    # ------------------------------------------------------------------ the body of a request

    def _expect_body(self) -> None:
        self._body_timer = self.loop.call_later(self._body_timeout_s, self._body_is_late)

    def _stop_body_timer(self) -> None:
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None

    def _body_is_late(self) -> None:
        self._body_timer = None
        if self.flow.read_paused:  # the node is late, not the client
            self._expect_body()
        elif self.cycle is not None and self.cycle.response_complete:
            self._hang_up()
        else:
            self._refuse(BodyTimeout())

    def on_response_complete(self) -> None:
        # Without any that wait, the request that was answered is the one that came last.
        is_whole = bool(self.pipeline) or not self.cycle.more_body
        super().on_response_complete()
        if not is_whole and not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self._stop_body_timer()
            self._body_timer = self.loop.call_later(_LINGER_S, self._hang_up)
        if self._unparsed:
            self._parse_more()

    def _expect_next(self) -> None:
        """Wait for the next request, if the body of the last one ended only after its answer."""
        is_answered = self.cycle is not None and self.cycle.response_complete
        if is_answered and not self.pipeline and self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    # ------------------------------------------------------------------ endings

    def _hang_up(self) -> None:
        """Close. What was written before is still sent, if the client reads it in time."""
        self.transport.close()
        if self._deadline is not None and self.transport.get_write_buffer_size():
            self._deadline.start()

    def timeout_keep_alive_handler(self) -> None:
        self._hang_up()

    def handle_websocket_upgrade(self) -> None:
        self._is_upgraded = True
        self._stop_timers()
        super().handle_websocket_upgrade()
        socket = self.transport.get_protocol()
        if isinstance(socket, GuardedSocket) and not socket.handshake_initiated:
            # For example it has a body. Uvicorn would wait, for ever, without a word.
            self._refuse(MalformedRequest("the WebSocket handshake is not valid"))

    def pause_writing(self) -> None:
        if self._deadline is not None:
            self._deadline.start()
        super().pause_writing()

    def resume_writing(self) -> None:
        if self._deadline is not None:
            self._deadline.stop()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._refusal or MalformedRequest())

    def _refuse(self, error: QuiverError) -> None:
        """Say what is wrong, and hang up."""
        if self.transport.is_closing():
            return
        problem = problem_of(error)
        body = msgspec.json.encode(problem)
        head = (
            f"content-type: {PROBLEM}\r\ncontent-length: {len(body)}\r\n"
            "cache-control: no-store\r\nconnection: close\r\n"
        )
        if problem.retry_after is not None:
            head += f"retry-after: {problem.retry_after}\r\n"
        if self._takes_an_answer():
            self.transport.write(STATUS_LINE[problem.status] + head.encode() + b"\r\n" + body)
        self._hang_up()

    def _takes_an_answer(self) -> bool:
        """Whether what is written now is the answer to the request that is at fault."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return True
        if cycle.response_started or self.pipeline:
            return False
        cycle.disconnected = True  # whoever carries it out is not heard any more
        cycle.message_event.set()
        return True


def _declared_length(headers: list[tuple[bytes, bytes]]) -> int:
    """The size that a request says its body has; 0 if it does not say so."""
    value = next((value for name, value in headers if name == b"content-length"), b"0")
    return int(value) if value.isdigit() and len(value) <= 15 else 0
