"""Messages pushed over a WebSocket: the consumer grants credit and settles on the same socket.

No more is taken from the subscription than the consumer has credit for, and the next is taken only
when the last was handed to the socket, so that a slow reader holds up nobody but itself. When the
socket ends, what it holds is given back at once or left to its leases, as the subscription says.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Coroutine
from typing import Any

import pyarrow as pa
import structlog
from msgspec import UNSET
from starlette.types import Receive, Scope, Send

from quiver.aio import TaskSet, first_of, retrieve_exception
from quiver.client import AsyncClient
from quiver.client.consumer.received import ReceivedMessage
from quiver.edge.http.arrow import stream_of, table_in
from quiver.edge.http.call import Call
from quiver.edge.http.edge import Edge, encode, send_problem
from quiver.edge.http.operation import Operation, Reply
from quiver.edge.http.problems import problem_of
from quiver.edge.http.routes.receive import delivered, settled
from quiver.edge.http.schemas.deliveries import StreamQuery
from quiver.edge.http.stream.credit import StreamCredit
from quiver.edge.http.stream.frames import (
    ARROW_PROTOCOL,
    JSON_PROTOCOL,
    AckFrame,
    Credit,
    ExtendFrame,
    Frame,
    MessagesFrame,
    NackFrame,
    Ping,
    Pong,
    ProblemFrame,
    RejectFrame,
    Said,
    SettledFrame,
    SettleFrame,
    frame_in,
)
from quiver.errors import (
    AccessRefused,
    HttpError,
    InvalidRequest,
    NotAcceptable,
    QuiverError,
    ShuttingDown,
    StaleReceipt,
    UnsupportedMediaType,
)
from quiver.model.clock import Clock, SystemClock
from quiver.model.receipt import leases_in, receipt
from quiver.model.subscription import RECEIVE_MAX, OnDisconnect, Ordering
from quiver.model.units import microseconds
from quiver.protocol.subscriptions import SubscriptionInfo

_WAIT_S = 20.0
_SETTLING_MAX = 64
_SETTLING_S = 5.0
_PUSH_MAX = 1000
"""Messages in one frame: the consumer can begin with the first while the next are on their way."""
_PUSH_BYTES_MAX = 1 << 20
_GONE = "the consumer's connection ended"
NORMAL, GOING_AWAY, POLICY, FAILED = 1000, 1001, 1008, 1011
logger = structlog.get_logger()


class SocketGone(Exception):
    """The other side has hung up."""


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
            info = await call.client.describe_subscription(call.path["name"])
            await call.client.peek(info.name, 1)  # whoever may not consume is told so before 101
            protocol = _chosen(scope["subprotocols"])
        except QuiverError as error:
            await send_problem(send, error, prefix="websocket.http.response")
            return
        await send({"type": "websocket.accept", "subprotocol": protocol})
        stream = _Stream(
            call.client,
            info,
            query,
            receive,
            send,
            self._clock,
            self._edge,
            is_arrow=protocol == ARROW_PROTOCOL,
        )
        await stream.run()
        if info.settings.on_disconnect is OnDisconnect.RETURN:
            await stream.release()


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


class _Stream:
    """One consumer's socket, once it is accepted."""

    def __init__(
        self,
        client: AsyncClient,
        subscription: SubscriptionInfo,
        query: StreamQuery,
        receive: Receive,
        send: Send,
        clock: Clock,
        edge: Edge,
        *,
        is_arrow: bool,
    ) -> None:
        visibility = None if query.visibility is UNSET else query.visibility
        self._client = client
        self._subscription = subscription.name
        self._receive = receive
        self._send = send
        self._clock = clock
        self._edge = edge
        self._is_arrow = is_arrow
        self._consumer = query.consumer or f"stream-{uuid.uuid4()}"
        self._terms: dict[str, Any] = {
            "wait": _WAIT_S,
            "visibility": visibility,
            "consumer": self._consumer,
            "max_bytes": _PUSH_BYTES_MAX,
        }
        self._settings = subscription.settings
        self._held_s = self._settings.visibility_s if visibility is None else visibility
        self._credit = StreamCredit()
        self._changed = asyncio.Event()
        self._active = clock.monotonic()
        self._turns = asyncio.Semaphore(_SETTLING_MAX)
        self._settling = TaskSet()

    async def run(self) -> None:
        """Until the consumer hangs up, says something wrong or nothing at all, or the node stops."""
        parts: list[Coroutine[Any, Any, tuple[int, str]]] = [
            self._listen(),
            self._push(),
            self._watch(),
            self._open_session(),
            self._until_draining(),
        ]
        ended = await first_of(*parts)
        await self._settling.wait(_SETTLING_S)  # what the consumer said before it left still counts
        await self._say_goodbye(ended)

    async def _say_goodbye(self, ended: asyncio.Future[tuple[int, str]]) -> None:
        error = ended.exception()
        if isinstance(error, SocketGone):
            return
        code, reason = FAILED, "the node failed; see its log"
        if error is None:
            code, reason = ended.result()
        elif isinstance(error, QuiverError):
            is_theirs = isinstance(error, HttpError | InvalidRequest | AccessRefused)
            code, reason = POLICY if is_theirs else FAILED, error.code
        else:
            logger.error("stream failed unexpectedly", exc_info=error)
        with contextlib.suppress(SocketGone):
            if isinstance(error, QuiverError):
                await self._send_frame(ProblemFrame(problem=problem_of(error)))
            await self._put({"type": "websocket.close", "code": code, "reason": reason[:100]})

    async def release(self) -> None:
        """Let others have at once what the consumer holds and has not settled."""
        if self._settings.ordering is Ordering.PARTITION:
            with contextlib.suppress(QuiverError):  # it is given up after its session's time
                await self._client.leave(self._subscription, self._consumer)
            return
        held = self._credit.all(self._clock.time_us())
        receipts = [receipt(lease, offset) for lease, offsets in held for offset in offsets]
        with contextlib.suppress(QuiverError):  # it comes back when its lease ends
            if receipts:
                await self._client.nack(self._subscription, receipts, delay=0, error=_GONE)

    # ------------------------------------------------------------------ the socket

    async def _put(self, message: dict[str, Any]) -> None:
        try:
            await self._send(message)
        except (OSError, RuntimeError) as error:  # uvicorn's ways of saying that it is closed
            raise SocketGone from error

    async def _send_frame(self, frame: Frame) -> None:
        await self._put({"type": "websocket.send", "text": encode(frame).decode()})

    async def _listen(self) -> tuple[int, str]:
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                raise SocketGone
            self._active = self._clock.monotonic()
            text = message.get("text")
            if text is not None:
                await self._take(frame_in(text))
            elif self._is_arrow:
                limit = self._edge.limits.body_bytes_max
                table = await table_in(message["bytes"], limit)
                await self._start(self._settle_table(table))
            else:
                raise UnsupportedMediaType(f"binary frames are for {ARROW_PROTOCOL}")

    async def _take(self, frame: Said) -> None:
        if isinstance(frame, Credit):
            self._credit.grant(frame.messages)
            self._changed.set()
        elif isinstance(frame, Ping):
            await self._send_frame(Pong(ref=frame.ref))
        else:
            await self._start(self._settle(frame))

    async def _until_draining(self) -> tuple[int, str]:
        await self._edge.draining.wait()
        return GOING_AWAY, ShuttingDown.code

    async def _open_session(self) -> tuple[int, str]:
        """Tell the group, where there is one, that its member is there."""
        if self._settings.ordering is not Ordering.PARTITION:
            return await self._until_draining()
        while True:
            await self._client.heartbeat(self._subscription, self._consumer)
            await self._clock.sleep(float(self._settings.session_timeout) / 3)

    async def _watch(self) -> tuple[int, str]:
        """End when neither side has had anything to say for long."""
        idle_s = self._edge.limits.idle_timeout_s
        while (left_s := self._active + idle_s - self._clock.monotonic()) > 0:
            await self._clock.sleep(left_s)
        return NORMAL, "idle"

    # ------------------------------------------------------------------ pushing

    async def _push(self) -> tuple[int, str]:
        while True:
            wanted = self._credit.wanted(self._clock.time_us())
            if wanted:
                await self._push_some(min(wanted, _PUSH_MAX, RECEIVE_MAX))
            else:
                await self._room()

    async def _push_some(self, wanted: int) -> None:
        if self._is_arrow:
            batch = await self._client.receive_batch(self._subscription, wanted, **self._terms)
            if batch.num_rows:
                self._hold_batch(batch)
                await self._put({"type": "websocket.send", "bytes": stream_of(batch)})
                self._active = self._clock.monotonic()
            return
        messages = await self._client.receive(self._subscription, wanted, **self._terms)
        if messages:
            self._hold(messages)
            await self._send_frame(MessagesFrame(messages=delivered(messages)))
            self._active = self._clock.monotonic()

    def _hold(self, messages: list[ReceivedMessage]) -> None:
        by_lease: dict[bytes, list[int]] = {}
        deadlines: dict[bytes, int] = {}
        for message in messages:
            by_lease.setdefault(message.lease, []).append(message.offset)
            deadlines[message.lease] = message.deadline_us
        for lease, offsets in by_lease.items():
            self._credit.delivered(lease, offsets, deadlines[lease])

    def _hold_batch(self, batch: pa.RecordBatch) -> None:
        deadline_us = self._clock.time_us() + microseconds(self._held_s)
        for lease, offsets in leases_in(batch.column("receipt")).items():
            self._credit.delivered(lease, offsets, deadline_us)

    async def _room(self) -> None:
        """Wait for credit, or for something that is held to be settled or to lapse."""
        self._changed.clear()
        lapse_us = self._credit.next_lapse_us() if self._credit.credit else None
        timeout_s = None if lapse_us is None else max(0.0, lapse_us - self._clock.time_us()) / 1e6
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()

    # ------------------------------------------------------------------ settling

    async def _start(self, work: Coroutine[Any, Any, None]) -> None:
        """Settle beside the rest, so many at a time: the next frame is read when there is a turn."""
        await self._turns.acquire()
        self._settling.start(work).add_done_callback(self._settled)

    def _settled(self, task: asyncio.Task[None]) -> None:
        self._turns.release()
        error = retrieve_exception(task)
        if error is not None and not isinstance(error, SocketGone):
            logger.error("settling failed unexpectedly", exc_info=error)

    async def _settle(self, frame: AckFrame | NackFrame | RejectFrame | ExtendFrame) -> None:
        client, name = self._client, self._subscription
        try:
            leases = leases_in(frame.receipts)
            if isinstance(frame, AckFrame):
                await settled(client.ack(name, frame.receipts))
            elif isinstance(frame, NackFrame):
                work = client.nack(name, frame.receipts, delay=frame.delay, error=frame.error)
                await settled(work)
            elif isinstance(frame, RejectFrame):
                await settled(client.reject(name, frame.receipts, error=frame.error))
            else:
                await settled(client.extend(name, frame.receipts, frame.visibility))
        except QuiverError as error:
            if isinstance(error, StaleReceipt):
                self._forget(leases)
            await self._send_frame(ProblemFrame(problem=problem_of(error), ref=frame.ref))
            return
        if isinstance(frame, ExtendFrame):
            deadline_us = self._clock.time_us() + microseconds(frame.visibility)
            for lease in leases:
                self._credit.extended(lease, deadline_us)
        else:
            self._forget(leases)
        await self._confirm(frame, len(frame.receipts))

    async def _confirm(self, frame: SettleFrame, count: int) -> None:
        if frame.ref is not None:
            await self._send_frame(SettledFrame(settled=count, ref=frame.ref))

    async def _settle_table(self, table: pa.Table) -> None:
        try:
            await settled(self._client.ack(self._subscription, table))
            self._forget(leases_in(table.column("receipt")))
        except QuiverError as error:
            await self._send_frame(ProblemFrame(problem=problem_of(error)))

    def _forget(self, leases: dict[bytes, Any]) -> None:
        for lease, offsets in leases.items():
            self._credit.settled(lease, offsets)
        self._changed.set()
