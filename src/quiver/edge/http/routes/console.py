"""The console over HTTP: its files need no token, its live data comes over a WebSocket.

A browser cannot set an ``Authorization`` header on a WebSocket, so the token is sent as a second
subprotocol, and never in a URL.
"""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import structlog
from starlette.types import Receive, Scope, Send

from quiver.aio import first_of
from quiver.client import AsyncClient
from quiver.console.history import MetricsHistory
from quiver.console.live import LiveMetrics
from quiver.console.pages import Pages
from quiver.edge.http.call import Call
from quiver.edge.http.edge import Edge, encode, send_problem
from quiver.edge.http.operation import Operation, Reply
from quiver.edge.http.routes.description import PAGE_HEADERS
from quiver.errors import MalformedRequest, NotAcceptable, Overloaded, QuiverError, ShuttingDown
from quiver.model.clock import Clock, SystemClock

PROTOCOL = "quiver.console.v1"
BEARER = "quiver.bearer."
VIEWERS_MAX = 200
_INTERVAL_S = 1.0
GOING_AWAY, POLICY_BROKEN, FAILED = 1001, 1008, 1011
logger = structlog.get_logger()


class HistoryQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Whose history: of one topic, of one subscription, or of the node and the totals."""

    topic: str | None = None
    subscription: str | None = None


def console_pages(history: MetricsHistory) -> tuple[Operation, ...]:
    """The operations that serve the console's files and what its charts begin with."""
    pages = Pages()

    async def show_console(call: Call) -> Reply:
        page = pages.get("index.html")
        return Reply(200, page.content, page.media_type, headers=PAGE_HEADERS)

    async def console_file(call: Call) -> Reply:
        file = pages.get(call.path["file"])
        return Reply(200, file.content, file.media_type, headers=PAGE_HEADERS)

    async def go_to_console(call: Call) -> Reply:
        return Reply(302, headers=((b"location", b"/console"),))

    async def console_history(call: Call) -> Reply:
        return Reply(200, encode(await _history(call, history)))

    return (
        Operation(
            method="GET",
            path="/console/history",
            id="console_history",
            handler=console_history,
            summary="The last hour of what the console's charts show.",
            tag="node",
            query=HistoryQuery,
        ),
        _page("/", "show_start", go_to_console, "Leads to the console."),
        _page("/console/", "show_console_too", go_to_console, "Leads to the console."),
        _page("/console", "show_console", show_console, "The console."),
        _page("/console/{file}", "console_file", console_file, "A file of the console."),
    )


async def _history(call: Call, history: MetricsHistory) -> dict[str, Any]:
    """What the caller may see of it: the client refuses what it may not."""
    query, client = call.query(HistoryQuery), call.client
    if query.topic is not None:
        await client.describe_topic(query.topic)
        shown = {"topics": history.topic(query.topic)}
    elif query.subscription is not None:
        await client.describe_subscription(query.subscription)
        shown = {"subscriptions": history.subscription(query.subscription)}
    else:
        topics = [one.name for one in await client.list_topics()]
        subscriptions = [one.name for one in await client.list_subscriptions()]
        counters = (await client.describe_node()).counters
        shown = {
            "node": history.node(with_latencies=bool(counters)),
            "totals": history.totals(topics, subscriptions),
        }
    return {"times_ms": history.times_ms, **shown}


def _page(path: str, id: str, handler: Any, summary: str) -> Operation:
    return Operation(
        method="GET",
        path=path,
        id=id,
        handler=handler,
        summary=summary,
        tag="node",
        is_open=True,
        may_cache=True,
    )


class LiveEndpoint:
    """``/console/live``: a frame of live data every second."""

    def __init__(self, edge: Edge, clock: Clock | None = None) -> None:
        self._edge = edge
        self._clock = clock or SystemClock()
        self._live_metrics = LiveMetrics(self._clock)
        self._viewers = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        try:
            if self._edge.draining.is_set():
                raise ShuttingDown
            if self._viewers >= VIEWERS_MAX:
                raise Overloaded(f"{VIEWERS_MAX} consoles are already open; close one")
            if PROTOCOL not in scope["subprotocols"]:
                raise NotAcceptable(
                    f"the subprotocol must be {PROTOCOL}", field="Sec-WebSocket-Protocol"
                )
            call = Call(self._edge, _LIVE, scope, receive)
            _take_token(call, scope["subprotocols"])
            await call.authenticate()
            await call.client.describe_node()
        except QuiverError as error:
            await send_problem(send, error, prefix="websocket.http.response")
            return
        await send({"type": "websocket.accept", "subprotocol": PROTOCOL})
        self._viewers += 1
        try:
            code, reason = await self._show(call.client, receive, send)
        finally:
            self._viewers -= 1
        if code:
            with contextlib.suppress(OSError, RuntimeError):  # it hung up at the same time
                await send({"type": "websocket.close", "code": code, "reason": reason})

    async def _show(self, client: AsyncClient, receive: Receive, send: Send) -> tuple[int, str]:
        """Run until the viewer leaves or the node stops; returns the close code, 0 if the socket is gone."""
        ended = await first_of(
            self._push(client, send), _until_gone(receive), self._until_draining()
        )
        return ended.result()

    async def _push(self, client: AsyncClient, send: Send) -> tuple[int, str]:
        sent: str | None = None
        while True:
            began = self._clock.monotonic()
            try:
                frame = await self._live_metrics.frame(client)
                if frame is not None and frame is not sent:
                    await send({"type": "websocket.send", "text": frame})
                    sent = frame
            except QuiverError as error:
                return POLICY_BROKEN, error.code
            except (OSError, RuntimeError):  # uvicorn's ways of saying that it is closed
                return 0, ""
            except Exception as error:
                logger.error("the console failed unexpectedly", exc_info=error)
                return FAILED, "the node failed; see its log"
            await self._clock.sleep(_INTERVAL_S - (self._clock.monotonic() - began))

    async def _until_draining(self) -> tuple[int, str]:
        await self._edge.draining.wait()
        await self._live_metrics.close()
        return GOING_AWAY, ShuttingDown.code


async def _until_gone(receive: Receive) -> tuple[int, str]:
    """Wait for the viewer to leave. It must not send anything."""
    message = await receive()
    if message["type"] == "websocket.disconnect":
        return 0, ""
    return POLICY_BROKEN, "this socket accepts no messages"


def _take_token(call: Call, protocols: list[str]) -> None:
    """Use the token in the subprotocols as if it were in the header."""
    tokens = [one.removeprefix(BEARER) for one in protocols if one.startswith(BEARER)]
    if not tokens:
        return
    if len(tokens) > 1 or b"authorization" in call.fields:
        raise MalformedRequest("the token is given twice; give it once")
    call.fields[b"authorization"] = b"Bearer " + tokens[0].encode("latin-1", "replace")


async def _live(call: Call) -> Reply:
    raise AssertionError("a WebSocket is no request")


_LIVE = Operation(
    method="GET",
    path="/console/live",
    id="live",
    handler=_live,
    summary="Live data of the node.",
    tag="node",
)
