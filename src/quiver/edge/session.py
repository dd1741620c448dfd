"""One client's conversation with the node, whatever carries it.

``receive`` takes a request and returns at once; the reply goes out through the ``send`` it was given,
in whatever order work is finished. Publishes are stored in the order in which they came. What is
unanswered is counted and bounded: a carrier stops reading while ``is_busy``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec
import structlog

from quiver.broker.broker import Broker
from quiver.broker.partition import Partition, Placed, unavailable
from quiver.broker.producers import StoredRange
from quiver.config import Limits
from quiver.errors import (
    LogClosed,
    LogFailed,
    ProtocolError,
    QuiverError,
    RequestTimeout,
    ShuttingDown,
    Unavailable,
    UnsupportedProtocol,
)
from quiver.metrics import NodeMetrics
from quiver.model import wire
from quiver.model.batch import Bytes
from quiver.model.clock import Clock
from quiver.model.topic import Acks
from quiver.version import __version__

_REQUEST_TIMEOUT_S = 30.0

logger = structlog.get_logger()

Answer = tuple[wire.AnyReply, Sequence[Bytes]]


class Send(Protocol):
    def __call__(self, reply: wire.AnyReply, body: Sequence[Bytes] = (), /) -> None: ...


class NodeServices(msgspec.Struct):
    """What a session needs of the node it is part of."""

    broker: Broker
    metrics: NodeMetrics
    limits: Limits
    clock: Clock
    node: str
    started: float
    connection_count: Callable[[], int] = lambda: 0


class _Unanswered(msgspec.Struct, gc=False):
    deadline: float
    size: int


class Session:
    """``send`` is called once for each request, in any order, and never after ``close``."""

    def __init__(self, services: NodeServices, send: Send) -> None:
        self._services = services
        self._broker = services.broker
        self._send = send
        self._unanswered: dict[int, _Unanswered] = {}
        self._unanswered_bytes = 0
        self._backlog: deque[tuple[wire.Publish, memoryview]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._fetch_turn = asyncio.Lock()
        self._writable = asyncio.Event()
        self._writable.set()
        self._draining = False
        self.on_progress: Callable[[], None] = lambda: None

    # ------------------------------------------------------------------ what the carrier sees

    @property
    def is_busy(self) -> bool:
        """Whether the carrier should stop reading until there is less to do."""
        limits = self._services.limits
        return (
            len(self._unanswered) >= limits.requests_max
            or self._unanswered_bytes >= limits.inflight_bytes_max
        )

    @property
    def is_idle(self) -> bool:
        return not self._unanswered

    def pause_sending(self) -> None:
        """The client is slow to read: produce no large replies until ``resume_sending``."""
        self._writable.clear()

    def resume_sending(self) -> None:
        self._writable.set()

    def receive(self, request: wire.AnyRequest, body: memoryview) -> None:
        if request.id in self._unanswered:
            raise ProtocolError(f"request {request.id} is still unanswered")
        call = request.__struct_config__.tag
        self._services.metrics.requests.labels(call).inc()
        size = len(body) + 256
        timeout_s = _REQUEST_TIMEOUT_S
        if isinstance(request, wire.Publish):
            timeout_s = min(max(request.timeout_ms, 1) / 1000, 300.0)
        elif isinstance(request, wire.Fetch):
            timeout_s += max(0, request.wait_ms) / 1000
        deadline = self._services.clock.monotonic() + timeout_s
        self._unanswered[request.id] = _Unanswered(deadline, size)
        self._unanswered_bytes += size
        if self._draining:
            self._fail(request.id, ShuttingDown())
        elif isinstance(request, wire.Publish):
            self._publish(request, body)
        else:
            task = asyncio.create_task(self._carry_out(request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def expire(self, now: float) -> None:
        """Answer what has waited too long."""
        overdue = [key for key, waiting in self._unanswered.items() if waiting.deadline <= now]
        for request_id in overdue:
            self._fail(request_id, RequestTimeout())

    async def drain(self, timeout_s: float) -> None:
        """Take nothing new; end waits; finish publishes that are under way."""
        self._draining = True
        for task in list(self._tasks):
            task.cancel()
        deadline = self._services.clock.monotonic() + timeout_s
        while self._unanswered and self._services.clock.monotonic() < deadline:
            await self._services.clock.sleep(0.005)
        for request_id in list(self._unanswered):
            self._fail(request_id, ShuttingDown())

    def close(self) -> None:
        """The client is gone: whatever is still going on has nobody to answer."""
        self._unanswered.clear()
        self._backlog.clear()
        for task in list(self._tasks):
            task.cancel()

    # ------------------------------------------------------------------ answering

    def _answer(self, request_id: int, reply: wire.AnyReply, body: Sequence[Bytes] = ()) -> None:
        waiting = self._unanswered.pop(request_id, None)
        if waiting is None:
            return
        self._unanswered_bytes -= waiting.size
        reply.id = request_id
        self._send(reply, body)
        self.on_progress()

    def _fail(self, request_id: int, error: QuiverError) -> None:
        if isinstance(error, LogFailed | LogClosed):
            error = unavailable(error)
        self._services.metrics.errors.labels(error.code).inc()
        self._answer(request_id, wire.failure(request_id, error))

    # ------------------------------------------------------------------ publishing

    def _publish(self, request: wire.Publish, body: memoryview) -> None:
        """Store at once if possible, else in turn behind what waits already."""
        partition = None
        if not self._backlog:
            partition = self._broker.ready_partition(request.topic, request.partition)
        if partition is not None:
            self._store(request, body, partition)
            return
        self._backlog.append((request, body))
        if len(self._backlog) == 1:
            task = asyncio.create_task(self._work_off_backlog())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work_off_backlog(self) -> None:
        while self._backlog:
            request, body = self._backlog[0]
            try:
                partition = await self._broker.partition(request.topic, request.partition)
                self._store(request, body, partition)
            except QuiverError as error:
                self._fail(request.id, error)
            except asyncio.CancelledError:
                for waiting, _ in self._backlog:
                    self._fail(waiting.id, ShuttingDown())
                self._backlog.clear()
                raise
            self._backlog.popleft()

    def _store(self, request: wire.Publish, body: memoryview, partition: Partition) -> None:
        self._services.metrics.published_bytes.inc(len(body))
        try:
            placed, number = self._broker.publish(partition, request.topic, body, request.layout)
        except QuiverError as error:
            self._fail(request.id, error)
            return
        if request.acks is Acks.NONE:
            self._answer(request.id, wire.Done())
        placed.add_done_callback(partial(self._stored, request.id, number))

    def _stored(self, request_id: int, number: int, placed: asyncio.Future[Placed]) -> None:
        if placed.cancelled():
            self._fail(request_id, ShuttingDown())
            return
        error = placed.exception()
        if error is not None:
            self._fail(request_id, error if isinstance(error, QuiverError) else _unexpected(error))
            return
        place = placed.result()
        self._services.metrics.published_batches.inc()
        self._answer(
            request_id,
            wire.Published(
                base_offset=place.base_offset,
                append_time=place.append_time,
                topic_number=number,
                duplicate=isinstance(place, StoredRange),
            ),
        )

    # ------------------------------------------------------------------ everything else

    async def _carry_out(self, request: wire.AnyRequest) -> None:
        try:
            if isinstance(request, wire.Fetch):
                await self._fetch(request)
                return
            handler = _HANDLERS[type(request)]
            reply, body = await handler(self, request)
            self._answer(request.id, reply, body)
        except QuiverError as error:
            self._fail(request.id, error)
        except asyncio.CancelledError:
            self._fail(request.id, ShuttingDown())
            raise
        except Exception as error:
            self._fail(request.id, _unexpected(error))

    async def _fetch(self, request: wire.Fetch) -> None:
        """Wait for data without holding anybody up, then read and send in turn with other fetches.

        Only one reply is in the making at a time, and only while the client reads: a client that
        asks for much and reads nothing costs one reply of memory.
        """
        wait_s = request.wait_ms / 1000
        await self._broker.wait_for_data(request.topic, request.partition, request.offset, wait_s)
        async with self._fetch_turn:
            await self._writable.wait()
            read = await self._broker.fetch(
                request.topic, request.partition, request.offset, bytes_max=request.bytes_max
            )
            buffers = [buffer for entry in read.entries for buffer in entry.buffers()]
            self._services.metrics.fetched_bytes.inc(sum(map(len, buffers)))
            reply = wire.Fetched(
                start_offset=read.start_offset,
                next_offset=read.next_offset,
                topic_number=read.topic_number,
            )
            self._answer(request.id, reply, buffers)

    async def _hello(self, request: wire.Hello) -> Answer:
        if wire.PROTOCOL_VERSION not in request.versions:
            raise _unsupported(request.versions)
        limits = self._services.limits
        return wire.Welcome(
            version=wire.PROTOCOL_VERSION,
            node=self._services.node,
            software=f"quiver/{__version__}",
            frame_bytes_max=limits.request_bytes_max,
            requests_max=limits.requests_max,
        ), ()

    async def _ping(self, _: wire.Ping) -> Answer:
        return wire.Done(), ()

    async def _create_topic(self, request: wire.CreateTopic) -> Answer:
        info = await self._broker.create_topic(
            request.name, request.settings, exist_ok=request.exist_ok
        )
        return wire.Topic(topic=info), ()

    async def _alter_topic(self, request: wire.AlterTopic) -> Answer:
        return wire.Topic(topic=await self._broker.alter_topic(request.name, request.changes)), ()

    async def _delete_topic(self, request: wire.DeleteTopic) -> Answer:
        await self._broker.delete_topic(request.name)
        return wire.Done(), ()

    async def _describe_topic(self, request: wire.DescribeTopic) -> Answer:
        return wire.Topic(topic=await self._broker.describe_topic(request.name)), ()

    async def _list_topics(self, _: wire.ListTopics) -> Answer:
        return wire.Topics(topics=await self._broker.list_topics()), ()

    async def _open_producer(self, request: wire.OpenProducer) -> Answer:
        identity, sequences = await self._broker.open_producer(request.name, request.topic)
        return wire.ProducerOpened(
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            last_sequences=sequences,
        ), ()

    async def _find_offset(self, request: wire.FindOffset) -> Answer:
        offset = await self._broker.find_offset(
            request.topic, request.partition, request.at, request.time_us
        )
        return wire.OffsetFound(offset=offset), ()

    async def _describe_node(self, _: wire.DescribeNode) -> Answer:
        services = self._services
        return wire.Node(
            node=services.node,
            software=f"quiver/{__version__}",
            uptime_s=services.clock.monotonic() - services.started,
            topics=self._broker.topic_count,
            partitions=self._broker.partition_count,
            connections=services.connection_count(),
            counters=services.metrics.values(),
        ), ()


_HANDLERS: dict[type, Callable[[Session, Any], Awaitable[Answer]]] = {
    wire.Hello: Session._hello,
    wire.Ping: Session._ping,
    wire.CreateTopic: Session._create_topic,
    wire.AlterTopic: Session._alter_topic,
    wire.DeleteTopic: Session._delete_topic,
    wire.DescribeTopic: Session._describe_topic,
    wire.ListTopics: Session._list_topics,
    wire.OpenProducer: Session._open_producer,
    wire.FindOffset: Session._find_offset,
    wire.DescribeNode: Session._describe_node,
}


def _unexpected(error: BaseException) -> Unavailable:
    logger.error("request failed unexpectedly", exc_info=error)
    return Unavailable("the node could not carry this out; its log says why")


def _unsupported(versions: list[int]) -> QuiverError:
    return UnsupportedProtocol(
        f"this node speaks version {wire.PROTOCOL_VERSION} of the protocol, not {versions[:10]}"
    )
