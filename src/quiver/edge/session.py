"""One client's conversation with the node, whatever carries it.

``receive`` takes a request and returns at once; the reply goes out through the ``send`` it was given,
in whatever order work is finished. Publishes are stored in the order in which they came. What is
unanswered is counted and bounded: a carrier stops reading while ``is_busy``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec
import structlog

from quiver import protocol
from quiver.broker.partition.partition import Partition, Placed, StoredOnce, unavailable
from quiver.broker.partition.producer_sessions import StoredRange
from quiver.broker.partition.reader import FETCH_WAIT_S_MAX
from quiver.broker.publish.copy import copy_entries
from quiver.broker.publish.publisher import Offer
from quiver.edge.auth.caller import Caller
from quiver.edge.auth.principal import PEER
from quiver.edge.calls.calls import PEER_REQUESTS_MAX, Calls
from quiver.edge.calls.fan_out import FanOut
from quiver.edge.calls.peers import answer_peer
from quiver.edge.calls.subscriptions import Receiving, acknowledge, settle
from quiver.edge.services import NodeServices
from quiver.errors import (
    LogClosed,
    LogFailed,
    ProtocolError,
    QuiverError,
    RequestTimeout,
    ShuttingDown,
    Unavailable,
)
from quiver.model.batch import Bytes
from quiver.model.topic import Acks

_REQUEST_TIMEOUT_S = 30.0
_PUBLISH_TIMEOUT_S_MAX = 300.0
_REQUEST_OVERHEAD = 256
"""About what a request costs beside its bytes."""

logger = structlog.get_logger()


class Send(Protocol):
    def __call__(self, reply: protocol.AnyReply, body: Sequence[Bytes] = (), /) -> None: ...


class _Waiting(msgspec.Struct, eq=False):
    """A request without an answer. It has its own identity: a client may use its id again."""

    id: int
    began: float
    deadline: float
    size: int
    task: asyncio.Task[None] | None = None
    is_under_way: bool = False
    """Whether a shutdown sees it to its end; what only waits for something is told at once."""


class Session:
    """``send`` is called once for each request, in any order, and never after ``close``.

    ``caller`` is whose requests these are. Without one they are a stranger's, who may do nothing on
    a node with authentication.
    """

    def __init__(self, services: NodeServices, send: Send, caller: Caller | None = None) -> None:
        self._services = services
        self._broker = services.broker
        self._send = send
        self.caller = caller or Caller(
            services.authority, services.clock, services.authority.stranger
        )
        self._unanswered: dict[int, _Waiting] = {}
        self._unanswered_bytes = 0
        self._backlog: deque[tuple[_Waiting, protocol.Publish, memoryview]] = deque()
        self._backlog_worker: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._fetch_turn = asyncio.Lock()
        self._call_turn = asyncio.Lock()
        self._writable = asyncio.Event()
        self._writable.set()
        self._fan_out = FanOut(services)
        self._draining = False
        self._is_resting = False
        self.on_progress: Callable[[], None] = lambda: None

    # ------------------------------------------------------------------ what the carrier sees

    @property
    def is_busy(self) -> bool:
        """Whether the carrier should stop reading until there is less to do."""
        limits = self._services.limits
        is_peer = self.caller.principal is PEER
        return (
            len(self._unanswered) >= (PEER_REQUESTS_MAX if is_peer else limits.requests_max)
            or self._unanswered_bytes >= limits.inflight_bytes_max
            or not self._writable.is_set()
            or self._is_resting
        )

    @property
    def is_idle(self) -> bool:
        return not self._unanswered

    def pause_sending(self) -> None:
        """The client is slow to read: take and produce nothing until ``resume_sending``."""
        self._writable.clear()

    def resume_sending(self) -> None:
        self._writable.set()
        self.on_progress()

    def receive(
        self, request: protocol.AnyRequest, body: memoryview, header_bytes: int = 0
    ) -> None:
        if request.id in self._unanswered:
            raise ProtocolError(
                f"the id {request.id} is used by a request that is not answered yet"
            )
        self._services.metrics.requests_of(request.__struct_config__.tag).inc()
        now, size = self._services.clock.monotonic(), header_bytes + len(body) + _REQUEST_OVERHEAD
        waiting = _Waiting(request.id, now, now + _timeout_s(request), size)
        self._unanswered[request.id] = waiting
        self._unanswered_bytes += waiting.size
        if self._draining:
            self._fail(waiting, ShuttingDown())
        elif not self._admit(waiting, request):
            return
        elif isinstance(request, protocol.Publish):
            self._publish(waiting, request, body)
        elif isinstance(request, protocol.Ping):
            self._answer(waiting, protocol.Done())
        elif isinstance(request, protocol.Abandon):
            self.abandon(request.request)
            self._answer(waiting, protocol.Done())
        else:
            waits = isinstance(request, protocol.Fetch | protocol.Receive | protocol.AskPeer)
            waiting.is_under_way = not waits
            waiting.task = self._start(self._carry_out(waiting, request, body))

    def _admit(self, waiting: _Waiting, request: protocol.AnyRequest) -> bool:
        """Whether the caller may have this done now; who is over a rate rests after it."""
        try:
            rest_s = self.caller.admit(request, waiting.size)
        except QuiverError as error:
            self._fail(waiting, error)
            return False
        if rest_s and not self._is_resting:
            self._is_resting = True
            self._start(self._rest(rest_s))
        return True

    async def _rest(self, seconds: float) -> None:
        await self._services.clock.sleep(seconds)
        self._is_resting = False
        self.on_progress()

    def expire(self, now: float) -> None:
        """Answer what has waited too long, and let go of it where that is still possible."""
        overdue = [waiting for waiting in self._unanswered.values() if waiting.deadline <= now]
        for waiting in overdue:
            self._fail(waiting, RequestTimeout())
            if waiting.task is not None:
                waiting.task.cancel()
        if overdue and self._backlog:
            self._backlog = deque(item for item in self._backlog if self._waits(item[0]))

    def abandon(self, request_id: int) -> None:
        """Nobody waits for this answer any more: what only waits ends, and takes nothing."""
        waiting = self._unanswered.get(request_id)
        if waiting is None or waiting.is_under_way or waiting.task is None:
            return
        del self._unanswered[request_id]
        self._unanswered_bytes -= waiting.size
        waiting.task.cancel()
        self.on_progress()

    def drain(self) -> None:
        """Take nothing new and end waits. What is under way goes on: until ``is_idle``."""
        self._draining = True
        self._backlog.clear()
        for waiting in list(self._unanswered.values()):
            if not waiting.is_under_way:
                self._fail(waiting, ShuttingDown())
                if waiting.task is not None:
                    waiting.task.cancel()

    def give_up(self) -> None:
        """Leave unfinished what draining did not see the end of."""
        for waiting in list(self._unanswered.values()):
            self._fail(waiting, ShuttingDown())

    def close(self) -> None:
        """The client is gone: whatever is still going on has nobody to answer."""
        if self.caller.node is not None and self._services.member is not None:
            self._services.member.on_broken(self.caller.node)
        self._unanswered.clear()
        self._backlog.clear()
        for task in list(self._tasks):
            task.cancel()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ------------------------------------------------------------------ answering

    def _waits(self, waiting: _Waiting) -> bool:
        return self._unanswered.get(waiting.id) is waiting

    def _answer(
        self, waiting: _Waiting, reply: protocol.AnyReply, body: Sequence[Bytes] = ()
    ) -> None:
        if not self._waits(waiting):
            return
        del self._unanswered[waiting.id]
        self._unanswered_bytes -= waiting.size
        reply.id = waiting.id
        if body:
            self.caller.sent(sum(map(len, body)))
        self._send(reply, body)
        self.on_progress()

    def _fail(self, waiting: _Waiting, error: QuiverError) -> None:
        if isinstance(error, LogFailed | LogClosed):
            error = unavailable(error)
        self._services.metrics.errors.labels(error.code).inc()
        self._answer(waiting, protocol.failure(waiting.id, error))

    # ------------------------------------------------------------------ publishing

    def _publish(self, waiting: _Waiting, request: protocol.Publish, body: memoryview) -> None:
        """Store at once if possible, else in turn behind what waits already."""
        self._services.metrics.published_bytes.inc(len(body))
        if self._backlog_worker is None:
            try:
                partition = self._broker.publisher.ready_partition(request.topic, request.partition)
                if partition is not None:
                    offer = self._broker.publisher.offer(
                        request.topic, body, request.layout, request.partition
                    )
                    if offer.is_light:
                        self._store(waiting, request.acks, partition, offer)
                        return
            except Exception as error:
                self._fail(waiting, _explained(error))
                return
        self._backlog.append((waiting, request, body))
        if self._backlog_worker is None:
            self._backlog_worker = self._start(self._work_off_backlog())

    async def _work_off_backlog(self) -> None:
        try:
            while self._backlog:
                waiting, request, body = self._backlog.popleft()
                try:
                    offer = self._broker.publisher.offer(
                        request.topic, body, request.layout, request.partition
                    )
                    await self._broker.publisher.check(offer)
                    partition = await self._broker.publisher.partition(
                        request.topic, request.partition
                    )
                    if self._waits(waiting):
                        self._store(waiting, request.acks, partition, offer)
                except Exception as error:
                    self._fail(waiting, _explained(error))
        finally:
            self._backlog_worker = None

    def _store(
        self, waiting: _Waiting, acks: Acks | None, partition: Partition, offer: Offer
    ) -> None:
        placed, number = self._broker.publisher.store(partition, offer, acks)
        waiting.is_under_way = True
        if acks is Acks.NONE:
            self._answer(waiting, protocol.Done())
        placed.add_done_callback(partial(self._stored, waiting, offer.topic, number))

    def _stored(
        self, waiting: _Waiting, topic: str, number: int, placed: asyncio.Future[Placed]
    ) -> None:
        error = _failure(placed)
        if error is not None:
            self._fail(waiting, error)
            return
        place = placed.result()
        metrics, now = self._services.metrics, self._services.clock.monotonic()
        metrics.published_batches.inc()
        metrics.traffic.topics.of(topic).latency.add(now - waiting.began)
        self._answer(
            waiting,
            protocol.Published(
                base_offset=place.base_offset,
                append_time=place.append_time,
                topic_number=number,
                duplicate=isinstance(place, StoredRange),
                repeats={
                    row: protocol.Repeat(seen.offset, seen.append_time)
                    for row, seen in place.repeats.items()
                }
                if isinstance(place, StoredOnce)
                else {},
            ),
        )

    # ------------------------------------------------------------------ everything else

    async def _carry_out(
        self, waiting: _Waiting, request: protocol.AnyRequest, body: memoryview
    ) -> None:
        try:
            if isinstance(request, protocol.AskPeer):
                self._answer(
                    waiting, *await answer_peer(self._services, self.caller, request, body)
                )
            elif isinstance(request, protocol.Fetch):
                await self._fetch(waiting, request)
            elif isinstance(request, protocol.Receive):
                await self._receive(waiting, request)
            elif isinstance(request, protocol.Copy):
                await self._copy(waiting, request)
            elif isinstance(request, protocol.Ack) and not self._fan_out.is_needed(self.caller):
                await self._ack(waiting, request)
            elif isinstance(
                request, protocol.Ack | protocol.Nack | protocol.Extend | protocol.Return
            ):
                if self._fan_out.is_needed(self.caller):
                    settled = await self._fan_out.settle(request)
                else:
                    settled = await settle(self._broker, request)
                self.caller.settled(request)
                self._answer(waiting, settled)
            else:
                await self._call(waiting, request)
        except Exception as error:
            self._fail(waiting, _explained(error))

    async def _copy(self, waiting: _Waiting, request: protocol.Copy) -> None:
        copied = await copy_entries(self._broker.publisher, self._broker.reader, request)
        self._services.metrics.published_bytes.inc(copied.bytes)
        self._services.metrics.published_batches.inc(copied.entries)
        self.caller.sent(copied.bytes)
        self._answer(waiting, copied)

    async def _ack(self, waiting: _Waiting, request: protocol.Ack) -> None:
        """Answer when it is durable, whatever becomes of the task: it was carried out."""
        settled, stored = await acknowledge(self._broker, request)

        def answer(done: asyncio.Future[Any] | None = None) -> None:
            if done is not None and (error := _failure(done)) is not None:
                self._fail(waiting, error)
                return
            self.caller.settled(request)
            self._answer(waiting, settled)

        if not stored:
            answer()
        elif len(stored) == 1:
            stored[0].add_done_callback(answer)
        else:
            asyncio.gather(*stored).add_done_callback(answer)

    async def _call(self, waiting: _Waiting, request: protocol.AnyRequest) -> None:
        """Carry out calls one after the other, and only while the client reads: some answer much."""
        async with self._call_turn:
            await self._writable.wait()
            try:
                reply, body = await Calls(self._services, self.caller).reply_to(request)
            except QuiverError as error:
                self.caller.did(request, error)
                raise
            self.caller.did(request, None)
            self._answer(waiting, reply, body)

    async def _fetch(self, waiting: _Waiting, request: protocol.Fetch) -> None:
        """Wait for data without holding anybody up, then read and send in turn with other fetches.

        Only one reply is in the making at a time, and only while the client reads: a client that
        asks for much and reads nothing costs one reply of memory.
        """
        wait_s = request.wait_ms / 1000
        place = request.topic, request.partition, request.offset
        await self._broker.reader.wait_for_data(*place, wait_s, any_replica=request.any_replica)
        async with self._fetch_turn:
            await self._writable.wait()
            read = await self._broker.reader.fetch(
                *place, bytes_max=request.bytes_max, any_replica=request.any_replica
            )
            buffers = [buffer for entry in read.entries for buffer in entry.buffers()]
            self._services.metrics.fetched_bytes.inc(sum(map(len, buffers)))
            reply = protocol.Fetched(
                start_offset=read.start_offset,
                next_offset=read.next_offset,
                topic_number=read.topic_number,
                layout=read.layout,
            )
            self._answer(waiting, reply, buffers)

    async def _receive(self, waiting: _Waiting, request: protocol.Receive) -> None:
        """Like ``_fetch``: waiting holds nobody up, and one reply is in the making at a time."""
        if self._fan_out.is_needed(self.caller):
            await self._receive_cluster_wide(waiting, request)
            return
        receiving = Receiving(self._broker, self._services.clock, request)
        asked = request.messages_max
        while True:
            async with self._fetch_turn:
                await self._writable.wait()
                request.messages_max = self.caller.room_for_messages(asked)
                received = await receiving.attempt()
                if not self._waits(waiting):
                    receiving.requeue()
                    return
                if received is not None:
                    if receiving.is_to_be_settled:
                        self.caller.took(received[0])
                    self._answer(waiting, *received)
                    return
            await receiving.wait()

    async def _receive_cluster_wide(self, waiting: _Waiting, request: protocol.Receive) -> None:
        """The same from all nodes that lead partitions of the subscription."""
        await self._writable.wait()
        request.messages_max = self.caller.room_for_messages(request.messages_max)
        wait_s = min(max(request.wait_ms, 0) / 1000, FETCH_WAIT_S_MAX)
        deadline = self._services.clock.monotonic() + wait_s
        reply, body = await self._fan_out.receive(request, deadline)
        if not self._waits(waiting):
            await self._fan_out.requeue(reply)
            return
        if self._broker.leaders.is_to_be_settled(request.subscription):
            self.caller.took(reply)
        self._answer(waiting, reply, body)


def _timeout_s(request: protocol.AnyRequest) -> float:
    if isinstance(request, protocol.Publish | protocol.Copy):
        return min(max(request.timeout_ms, 1) / 1000, _PUBLISH_TIMEOUT_S_MAX)
    if isinstance(request, protocol.Fetch | protocol.Receive):
        return _REQUEST_TIMEOUT_S + min(max(0, request.wait_ms) / 1000, FETCH_WAIT_S_MAX)
    return _REQUEST_TIMEOUT_S


def _failure(done: asyncio.Future[Any]) -> QuiverError | None:
    """What a client is told if that failed which its request waited for."""
    if done.cancelled():
        return ShuttingDown()
    error = done.exception()
    return None if error is None else _explained(error)


def _explained(error: BaseException) -> QuiverError:
    """What a client is told; of what should never happen, only that the node's log has it."""
    if isinstance(error, QuiverError):
        return error
    logger.error("request failed unexpectedly", exc_info=error)
    return Unavailable("the node failed to handle the request; see its log")
