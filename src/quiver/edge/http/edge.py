"""The HTTP edge: routes each request to its operation and answers it.

It knows clients, limits and whether the node is stopping. It knows neither sockets nor the broker.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import structlog
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Route, Router, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from quiver.config import Limits
from quiver.edge.http.call import Call, ClientGone
from quiver.edge.http.clients import Clients
from quiver.edge.http.compression import WORTH_PACKING_BYTES, codec_for, packed
from quiver.edge.http.operation import Operation, Reply
from quiver.edge.http.problems import PROBLEM, problem_of
from quiver.edge.http.requests import Requests
from quiver.edge.http.web_access import WebAccess
from quiver.errors import (
    BodyTooLarge,
    MalformedRequest,
    MethodNotAllowed,
    PathNotFound,
    QuiverError,
    ShuttingDown,
    Unavailable,
)
from quiver.metrics.forwarder_metrics import ForwarderMetrics

logger = structlog.get_logger()
encode = msgspec.json.Encoder().encode
_NO_STORE = (b"cache-control", b"no-store")
_NO_CACHE = (b"cache-control", b"no-cache")
_VARY = (b"vary", b"accept, accept-encoding, authorization")
_NOSNIFF = (b"x-content-type-options", b"nosniff")
_HANG_UP = (MalformedRequest, BodyTooLarge)
"""After these the connection is closed without reading the rest of the body."""


class Edge:
    """An ASGI application."""

    def __init__(
        self,
        clients: Clients,
        limits: Limits,
        operations: Sequence[Operation],
        *,
        require_space: Callable[[], None] = lambda: None,
        is_single: bool = False,
        access: WebAccess | None = None,
        requests: Requests | None = None,
        metrics: ForwarderMetrics | None = None,
    ) -> None:
        """``metrics`` are those of a forwarder, which has no broker that counts."""
        self.clients = clients
        self.requests = requests or Requests()
        self.limits = limits
        self.operations = operations
        self.require_space = require_space
        self.is_single = is_single
        self.metrics = metrics
        self.access = access or WebAccess()
        self.draining = asyncio.Event()
        self.is_joining = False
        """Whether the node listens, but its cluster does not know of it yet."""
        by_path: dict[str, dict[str, Operation]] = {}
        for operation in operations:
            by_path.setdefault(operation.path, {})[operation.method] = operation
        routes: list[BaseRoute] = [
            Route(path, _Endpoint(self, methods)) for path, methods in by_path.items()
        ]
        self._routes = Router(routes, redirect_slashes=False, default=self._nothing_there)
        self._app: ASGIApp = self._routes
        if self.access.origins:
            self._app = CORSMiddleware(
                self._routes,
                allow_origins=list(self.access.origins),
                allow_methods=["GET", "PUT", "POST", "PATCH", "DELETE"],
                allow_headers=["*"],
                expose_headers=["Retry-After", "ETag"],
            )

    def add_socket(self, path: str, endpoint: ASGIApp) -> None:
        """Serve WebSockets at ``path`` with ``endpoint``."""
        self._routes.routes.append(WebSocketRoute(path, endpoint))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            with self.requests.waiting():
                await self._app(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _nothing_there(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send_problem(send, PathNotFound(), prefix="websocket.http.response")
        elif scope["type"] == "http":
            await send_problem(send, PathNotFound())


class _Endpoint:
    """Everything at one path."""

    def __init__(self, edge: Edge, methods: dict[str, Operation]) -> None:
        self._edge = edge
        self._methods = methods
        self._allowed = ", ".join(sorted(methods)).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        operation = self._methods.get(scope["method"]) or self._head(scope["method"])
        if operation is None:
            await send_problem(send, MethodNotAllowed(), (b"allow", self._allowed))
            return
        try:
            if self._edge.draining.is_set() and not operation.is_open:
                raise ShuttingDown
            call = Call(self._edge, operation, scope, receive)
            if self._edge.metrics is not None:
                self._edge.metrics.count(operation.id)
            if not operation.is_open:
                await call.authenticate()
            reply = await operation.handler(call)
            await _send(send, call, reply)
        except QuiverError as error:
            await send_problem(send, error)
        except ClientGone:
            return
        except Exception as error:
            logger.error("request failed unexpectedly", operation=operation.id, exc_info=error)
            await send_problem(
                send, Unavailable("the node failed to handle the request; see its log")
            )

    def _head(self, method: str) -> Operation | None:
        """HEAD works where GET changes nothing."""
        found = self._methods.get("GET") if method == "HEAD" else None
        return found if found is not None and (found.may_cache or found.is_open) else None


async def _send(send: Send, call: Call, reply: Reply) -> None:
    body = reply.body
    headers = [(b"content-type", reply.media_type.encode()), _NOSNIFF, *reply.headers]
    if call.operation.may_cache:
        tag = b'"' + hashlib.blake2b(body, digest_size=16).hexdigest().encode() + b'"'
        headers += [(b"etag", tag), _NO_CACHE, _VARY]
        if tag in call.fields.get(b"if-none-match", b""):
            await _start(send, 304, headers[1:])
            await send({"type": "http.response.body", "body": b""})
            return
    else:
        headers.append(_NO_STORE)
    if len(body) >= WORTH_PACKING_BYTES and b"accept-encoding" in call.fields:
        codec = codec_for(call.header(b"accept-encoding"))
        if codec is not None:
            body = await packed(body, codec)
            headers.append((b"content-encoding", codec.encode()))
    if reply.status == 204:
        headers = headers[1:]
    else:
        headers.append((b"content-length", str(len(body)).encode()))
    await _start(send, reply.status, headers)
    await send({"type": "http.response.body", "body": body})


async def _start(send: Send, status: int, headers: list[Any]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def send_problem(
    send: Send, error: QuiverError, *headers: tuple[bytes, bytes], prefix: str = "http.response"
) -> None:
    problem = problem_of(error)
    body = encode(problem)
    fields = [
        (b"content-type", PROBLEM.encode()),
        (b"content-length", str(len(body)).encode()),
        _NO_STORE,
        _NOSNIFF,
        *headers,
    ]
    if problem.retry_after is not None:
        fields.append((b"retry-after", str(problem.retry_after).encode()))
    if problem.status == 401:
        fields.append((b"www-authenticate", b'Bearer realm="quiver"'))
    if isinstance(error, _HANG_UP):
        fields.append((b"connection", b"close"))
    await send({"type": f"{prefix}.start", "status": problem.status, "headers": fields})
    await send({"type": f"{prefix}.body", "body": body})
