"""The path of the WebSocket stream: who may consume is let in, and the rest is told why not."""

from __future__ import annotations

import uuid

from msgspec import UNSET
from starlette.types import Receive, Scope, Send

from quiver.client.consumer.lease_times import lease_ms
from quiver.client.consumer.session.terms import SessionTerms
from quiver.edge.http.call import Call
from quiver.edge.http.edge import Edge, send_problem
from quiver.edge.http.operation import Operation, Reply
from quiver.edge.http.schemas.deliveries import StreamQuery
from quiver.edge.http.stream.frames import ARROW_PROTOCOL, JSON_PROTOCOL
from quiver.edge.http.stream.socket import Socket
from quiver.edge.http.stream.stream import Stream
from quiver.errors import NotAcceptable, QuiverError, ShuttingDown
from quiver.model.clock import Clock, SystemClock

_WAITING_BYTES_MAX = 1 << 20
"""How much may wait for a socket besides what it is being sent."""


class StreamEndpoint:
    """``/subscriptions/{name}/stream``."""

    def __init__(self, edge: Edge, clock: Clock | None = None) -> None:
        self._edge = edge
        self._clock = clock or SystemClock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        try:
            if self._edge.draining.is_set():
                raise ShuttingDown
            call = Call(self._edge, _STREAM, scope, receive)
            await call.authenticate()
            query = call.query(StreamQuery)
            protocol = _chosen(scope["subprotocols"])
            info = await call.client.describe_subscription(call.path["name"])
            stream = Stream(
                Socket(receive, send),
                info.settings,
                self._edge,
                self._clock,
                is_arrow=protocol == ARROW_PROTOCOL,
            )
            await stream.open(call.client, _terms(info.name, query))
        except QuiverError as error:
            await send_problem(send, error, prefix="websocket.http.response")
            return
        async with stream:
            await send({"type": "websocket.accept", "subprotocol": protocol})
            await stream.run()


def _terms(subscription: str, query: StreamQuery) -> SessionTerms:
    visibility_ms = None if query.visibility is UNSET else lease_ms("visibility", query.visibility)
    return SessionTerms(
        subscription=subscription,
        consumer=query.consumer or f"stream-{uuid.uuid4()}",
        bytes_max=_WAITING_BYTES_MAX,
        visibility_ms=visibility_ms,
    )


def _chosen(offered: list[str]) -> str | None:
    if not offered:
        return None
    for protocol in (JSON_PROTOCOL, ARROW_PROTOCOL):
        if protocol in offered:
            return protocol
    raise NotAcceptable(
        f"the subprotocol must be {JSON_PROTOCOL} or {ARROW_PROTOCOL}",
        field="Sec-WebSocket-Protocol",
    )


async def _stream(call: Call) -> Reply:
    raise AssertionError("a WebSocket is no request")


_STREAM = Operation(
    method="GET",
    path="/subscriptions/{name}/stream",
    id="stream",
    handler=_stream,
    summary="Stream messages over a WebSocket.",
    tag="subscriptions",
)
