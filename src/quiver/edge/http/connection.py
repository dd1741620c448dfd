"""An HTTP connection with bounds that uvicorn does not have.

Headers are bounded in size and time, a client that does not read its replies is disconnected, and the
number of connections is bounded.
"""

from __future__ import annotations

import asyncio
from asyncio import TimerHandle, Transport
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
from quiver.errors import HeadersTooLarge, MalformedRequest, Overloaded, QuiverError

PIPELINE_MAX = 64
"""Requests that wait behind one that is being handled. What comes after them is not parsed yet."""
PIECE_BYTES = 4096
"""How much is parsed at a time where it may be many requests."""
NO_CLOSE_FRAME = 1006
"""The code of a WebSocket whose other side ended without a close frame."""
_VERSIONS = ("1.0", "1.1")


class EdgeConfig(Config):
    """uvicorn's settings, and the node's limits."""

    def __init__(self, app: Any, limits: Limits) -> None:
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


class _WriteDeadline:
    """Ends a connection whose other side has not read for too long."""

    def __init__(self, transport: Transport, seconds: float) -> None:
        self._transport = transport
        self._seconds = seconds
        self._timer: TimerHandle | None = None

    def start(self) -> None:
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
        self._connections_max = limits.connections_max
        self._write_timeout_s = limits.write_timeout_s
        self._is_in_head = True
        self._head_bytes = 0
        self._head_timer: TimerHandle | None = None
        self._deadline: _WriteDeadline | None = None
        self._refusal: QuiverError | None = None
        self._unparsed = b""
        self._body_left = 0
        self._is_upgraded = False

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._deadline = _WriteDeadline(transport, self._write_timeout_s)
        certificate = transport.get_extra_info("peercert")
        if certificate:
            self.app_state = {**self.app_state, "certificate": certificate}
        if len(self.connections) > self._connections_max:
            self._refuse(
                Overloaded(
                    f"{self._connections_max:,} clients are already connected, the most allowed"
                )
            )
            return
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        super().connection_lost(exc)

    def _stop_timers(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        if self._deadline is not None:
            self._deadline.stop()

    # ------------------------------------------------------------------ the head of a request

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(self._header_timeout_s, self._too_slow)

    def _too_slow(self) -> None:
        self.transport.close()

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

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._unparsed:
            self._parse_more()

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
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
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
        self._is_in_head = True
        self._body_left = 0
        self._head_bytes = 0

    def _too_large(self) -> HeadersTooLarge:
        return HeadersTooLarge(
            f"the request line and headers may have {self._header_bytes_max:,} bytes"
        )

    # ------------------------------------------------------------------ endings

    def handle_websocket_upgrade(self) -> None:
        self._is_upgraded = True
        self._stop_timers()
        super().handle_websocket_upgrade()

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
        self.transport.close()

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
