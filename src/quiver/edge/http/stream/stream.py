"""Messages pushed over a WebSocket: the consumer grants credit and settles on the same socket.

The messages come from a consumer's session like any other. It has as much credit as the socket, and
its messages are started as they are written to the socket, so that a slow reader holds up nobody but
itself. When the socket ends, what it holds is returned at once or left to its leases.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, Self

import pyarrow as pa
import structlog

from quiver.aio import TaskSet, first_of, retrieve_exception
from quiver.client import AsyncClient
from quiver.client.consumer.lease_times import lease_ms
from quiver.client.consumer.received import leases_of
from quiver.client.consumer.relay.relay import Relay, RelayEnd, open_relay
from quiver.client.consumer.relay.watched_settlements import Watched
from quiver.client.consumer.session.leases import Leases
from quiver.client.consumer.session.terms import SessionTerms
from quiver.client.consumer.settlement_kind import ACK, Kind
from quiver.edge.http.arrow import receipts_in, stream_of
from quiver.edge.http.edge import Edge
from quiver.edge.http.off_loop import off_loop
from quiver.edge.http.problems import problem_of
from quiver.edge.http.routes.receive import delivered, payload_bytes
from quiver.edge.http.stream.frames import (
    ARROW_PROTOCOL,
    CREDIT_MAX,
    Credit,
    ExtendFrame,
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
    has_ref,
    ref_in,
)
from quiver.edge.http.stream.socket import Socket, SocketGone
from quiver.errors import (
    AccessRefused,
    HttpError,
    InvalidRequest,
    QuiverError,
    ShuttingDown,
    UnsupportedMediaType,
)
from quiver.model.clock import Clock
from quiver.model.receipt import leases_in
from quiver.model.subscription import OnDisconnect, SubscriptionSettings

_SETTLING_MAX = 1000
"""How many frames may wait for their answer."""
_SETTLING_S = 5.0
_BLOCKED_S = 0.1
"""When a socket has taken nothing for so long, what waits for it goes to others."""
PUSH_MAX = 1000
"""Messages in one frame: the consumer can begin with the first while the next are on their way."""
NORMAL, GOING_AWAY, POLICY, FAILED = 1000, 1001, 1008, 1011
logger = structlog.get_logger()


class Stream:
    """One consumer's socket: ``open`` it, then ``run`` it within ``async with``."""

    def __init__(
        self,
        socket: Socket,
        settings: SubscriptionSettings,
        edge: Edge,
        clock: Clock,
        *,
        is_arrow: bool,
    ) -> None:
        self._socket = socket
        self._settings = settings
        self._edge = edge
        self._clock = clock
        self._is_arrow = is_arrow
        self._relay: Relay
        self._end = self._end_of(None)
        self._active = clock.monotonic()
        self._turns = asyncio.Semaphore(_SETTLING_MAX)
        self._settling = TaskSet()

    async def open(self, client: AsyncClient, terms: SessionTerms) -> None:
        """Begin to consume. Raises what keeps the consumer from it."""
        self._relay = await open_relay(
            client, terms, is_arrow=self._is_arrow, on_problem=self._report
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        with contextlib.suppress(QuiverError):  # what is left comes back when its leases end
            await self._relay.close(self._end)

    async def run(self) -> None:
        """Until the consumer hangs up, says something wrong or nothing at all, or the node stops."""
        parts: list[Coroutine[Any, Any, tuple[int, str]]] = [
            self._listen(),
            self._push(),
            self._watch(),
            self._until_draining(),
        ]
        ended = await first_of(*parts)
        await self._settling.wait(_SETTLING_S)  # what the consumer said before it left still counts
        error = ended.exception()
        if isinstance(error, SocketGone):
            self._end = self._end_of(error)
        else:
            await self._say_goodbye(ended)

    def _end_of(self, gone: SocketGone | None) -> RelayEnd:
        """What becomes of what the consumer has. ``gone``: if it was the consumer that ended."""
        is_closed = gone is not None and gone.is_closed
        if self._settings.on_disconnect is OnDisconnect.KEEP:
            return RelayEnd.KEPT
        if self._settings.trusts_silence and not is_closed:
            return RelayEnd.KEPT
        return RelayEnd.CLOSED if gone is None or is_closed else RelayEnd.SILENT

    async def _say_goodbye(self, ended: asyncio.Future[tuple[int, str]]) -> None:
        error = ended.exception()
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
                await self._socket.send(ProblemFrame(problem=problem_of(error)))
            await self._socket.close(code, reason)

    # ------------------------------------------------------------------ what the consumer says

    async def _listen(self) -> tuple[int, str]:
        while True:
            said = await self._socket.next()
            self._active = self._clock.monotonic()
            if isinstance(said, str):
                await self._take_text(said)
            elif self._is_arrow:
                table = await receipts_in(said, self._edge.limits.body_bytes_max)
                await self._settle_table(table)
            else:
                raise UnsupportedMediaType(f"binary frames are for {ARROW_PROTOCOL}")

    async def _take_text(self, said: str) -> None:
        """A frame that is wrong fails alone if the consumer waits for its answer."""
        try:
            frame = frame_in(said)
        except InvalidRequest as error:
            if not has_ref(said):
                raise
            problem = ProblemFrame(problem=problem_of(error), ref=ref_in(said))
            with contextlib.suppress(SocketGone):
                await self._socket.send(problem)
        else:
            await self._take(frame)

    async def _take(self, frame: Said) -> None:
        if isinstance(frame, Credit):
            credit = self._relay.credit
            credit.set(min(CREDIT_MAX, credit.messages + frame.messages))
        elif isinstance(frame, Ping):
            with contextlib.suppress(SocketGone):  # the last frame says how it ended
                await self._socket.send(Pong(ref=frame.ref))
        else:
            await self._settle(frame)

    async def _until_draining(self) -> tuple[int, str]:
        await self._edge.draining.wait()
        return GOING_AWAY, ShuttingDown.code

    async def _watch(self) -> tuple[int, str]:
        """End when neither side has had anything to say for long."""
        idle_s = self._edge.limits.idle_timeout_s
        while (left_s := self._active + idle_s - self._clock.monotonic()) > 0:
            await self._clock.sleep(left_s)
        return NORMAL, "idle"

    # ------------------------------------------------------------------ pushing

    async def _push(self) -> tuple[int, str]:
        try:
            while True:
                await (self._push_batch() if self._is_arrow else self._push_messages())
                self._active = self._clock.monotonic()
        except SocketGone:
            self._relay.credit.set(0)
        # How the socket ended is in the last frame, after what the consumer said before.
        await asyncio.get_running_loop().create_future()
        raise AssertionError("whoever listens ends first")

    async def _push_messages(self) -> None:
        messages = await self._relay.next_messages(PUSH_MAX)
        deadline_us = self._clock.time_us() + self._relay.visibility_us
        try:
            size = payload_bytes(messages)
            frame = MessagesFrame(messages=await off_loop(size, delivered, messages, deadline_us))
            await self._written(self._socket.send(frame))
        except BaseException:
            self._relay.settlements.give_back(leases_of(messages))
            raise

    async def _push_batch(self) -> None:
        batch = await self._relay.next_batch(PUSH_MAX)
        try:
            await self._written(self._socket.send_bytes(stream_of(batch)))
        except BaseException:
            self._relay.settlements.give_back(leases_in(batch.column("receipt")))
            raise

    async def _written(self, sending: Coroutine[Any, Any, None]) -> None:
        """Send. Nothing waits for a socket that takes nothing."""
        loop = asyncio.get_running_loop()
        blocked = loop.call_later(_BLOCKED_S, self._relay.credit.rest)
        try:
            await sending
        finally:
            blocked.cancel()
        credit = self._relay.credit
        if credit.is_resting:
            credit.set(credit.messages)

    # ------------------------------------------------------------------ settling

    async def _settle(self, frame: SettleFrame) -> None:
        """A frame with a ``ref`` is answered when it is stored; another one only if it fails."""
        try:
            leases = leases_in(frame.receipts)
        except (QuiverError, UnicodeEncodeError) as error:
            problem = _problem(error)
            with contextlib.suppress(SocketGone):
                await self._socket.send(ProblemFrame(problem=problem_of(problem), ref=frame.ref))
            return
        if frame.ref is None:
            await self._record(_kind(frame), leases)
            return
        await self._turns.acquire()
        watched = self._relay.settlements.settle_watched(_kind(frame), leases)
        self._settling.start(self._confirm(frame, watched)).add_done_callback(self._settled)

    async def _settle_table(self, table: pa.Table) -> None:
        try:
            if "receipt" not in table.schema.names:
                raise InvalidRequest("the batch has no column 'receipt', which settles it")
            leases = leases_in(table.column("receipt"))
        except QuiverError as error:
            self._report(error)
        else:
            await self._record(ACK, leases)

    async def _record(self, kind: Kind, leases: Leases) -> None:
        await self._relay.settlements.until_room()
        self._relay.settlements.settle_all(kind, leases)

    async def _confirm(self, frame: SettleFrame, watched: Watched) -> None:
        try:
            await self._relay.settlements.stored(watched)
        except QuiverError as error:
            await self._socket.send(ProblemFrame(problem=problem_of(error), ref=frame.ref))
        else:
            await self._socket.send(SettledFrame(settled=len(frame.receipts), ref=frame.ref))

    def _report(self, error: QuiverError) -> None:
        """A settlement failed that the consumer does not wait for."""
        told = self._settling.start(self._socket.send(ProblemFrame(problem=problem_of(error))))
        told.add_done_callback(_ignore_gone)

    def _settled(self, task: asyncio.Task[None]) -> None:
        self._turns.release()
        _ignore_gone(task)


def _ignore_gone(task: asyncio.Task[None]) -> None:
    error = retrieve_exception(task)
    if error is not None and not isinstance(error, SocketGone):
        logger.error("settling failed unexpectedly", exc_info=error)


def _kind(frame: SettleFrame) -> Kind:
    """What a frame does with its messages."""
    if isinstance(frame, NackFrame):
        delay_ms = None if frame.delay is None else lease_ms("delay", frame.delay)
        return Kind("nack", delay_ms=delay_ms, error=frame.error)
    if isinstance(frame, RejectFrame):
        return Kind("reject", error=frame.error)
    if isinstance(frame, ExtendFrame):
        return Kind("extend", visibility_ms=lease_ms("visibility", frame.visibility))
    return ACK


def _problem(error: Exception) -> QuiverError:
    if isinstance(error, QuiverError):
        return error
    return InvalidRequest("receipts: a receipt is not valid", field="receipts")
