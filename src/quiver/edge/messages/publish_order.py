"""The publishes of one client: stored in order of arrival, answered as they become durable.

A batch whose partition is ready is stored at once, without a task. This path is taken by almost every
publish. A publish that must wait, for its partition to open or for the check of a large batch, makes
all later ones wait too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from quiver import protocol
from quiver.broker.partition.partition import Partition
from quiver.broker.partition.producers.in_flight import Placed, StoredOnce
from quiver.broker.partition.producers.sessions import StoredRange
from quiver.broker.publish.publisher import Offer
from quiver.edge.messages.failures import explained, failure_of
from quiver.edge.services import NodeServices
from quiver.errors import QuiverError
from quiver.model.topic import Acks


class Unanswered(Protocol):
    """A publish without an answer."""

    @property
    def began(self) -> float: ...

    is_under_way: bool
    """Whether the batch was handed to the log. A shutdown waits for it then."""


W = TypeVar("W", bound=Unanswered)


class PublishOrder(Generic[W]):
    """``answer`` or ``fail`` is called once for each publish that ``is_wanted`` until then.

    ``start`` begins the task that works off what has to wait.
    """

    def __init__(
        self,
        services: NodeServices,
        *,
        answer: Callable[[W, protocol.AnyReply], None],
        fail: Callable[[W, QuiverError], None],
        is_wanted: Callable[[W], bool],
        start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._publisher = services.broker.publisher
        self._metrics = services.metrics
        self._clock = services.clock
        self._answer = answer
        self._fail = fail
        self._is_wanted = is_wanted
        self._start = start
        self._backlog: deque[tuple[W, protocol.Publish, memoryview]] = deque()
        self._worker: asyncio.Task[None] | None = None

    def publish(self, waiting: W, request: protocol.Publish, body: memoryview) -> None:
        """Store at once if possible, otherwise after the publishes that wait already."""
        self._metrics.published_bytes.inc(len(body))
        if self._worker is None:
            publisher = self._publisher
            try:
                partition = publisher.ready_partition(request.topic, request.partition)
                if partition is not None:
                    offer = publisher.offer(request.topic, body, request.layout, request.partition)
                    if offer.is_light:
                        self._store(waiting, request.acks, partition, offer)
                        return
            except Exception as error:
                self._fail(waiting, explained(error))
                return
        self._backlog.append((waiting, request, body))
        if self._worker is None:
            self._worker = self._start(self._work_off())

    def clear(self) -> None:
        """Drop the publishes that wait."""
        self._backlog.clear()

    def forget_unwanted(self) -> None:
        """Drop the publishes that wait and that nobody wants any more."""
        if self._backlog:
            self._backlog = deque(item for item in self._backlog if self._is_wanted(item[0]))

    async def _work_off(self) -> None:
        publisher = self._publisher
        try:
            while self._backlog:
                waiting, request, body = self._backlog.popleft()
                try:
                    offer = publisher.offer(request.topic, body, request.layout, request.partition)
                    await publisher.check(offer)
                    partition = await publisher.partition(request.topic, request.partition)
                    if self._is_wanted(waiting):
                        self._store(waiting, request.acks, partition, offer)
                except Exception as error:
                    self._fail(waiting, explained(error))
        finally:
            self._worker = None

    def _store(self, waiting: W, acks: Acks | None, partition: Partition, offer: Offer) -> None:
        placed, number = self._publisher.store(partition, offer, acks)
        waiting.is_under_way = True
        if acks is Acks.NONE:
            self._answer(waiting, protocol.Done())
        placed.add_done_callback(partial(self._stored, waiting, offer.topic, number))

    def _stored(self, waiting: W, topic: str, number: int, placed: asyncio.Future[Placed]) -> None:
        error = failure_of(placed)
        if error is not None:
            self._fail(waiting, error)
            return
        self._metrics.published_batches.inc()
        latency_s = self._clock.monotonic() - waiting.began
        self._metrics.traffic.topics.of(topic).latency.add(latency_s)
        self._answer(waiting, published(placed.result(), number))


class OnePublish(msgspec.Struct, eq=False):
    """A publish without a session."""

    reply: asyncio.Future[protocol.AnyReply]
    """Cancel it if nobody wants it any more."""
    began: float
    is_under_way: bool = False


def publish_one(services: NodeServices, request: protocol.Publish, body: memoryview) -> OnePublish:
    """Store one batch. The reply is there when it is durable. Sessions keep several in order."""
    reply: asyncio.Future[protocol.AnyReply] = asyncio.get_running_loop().create_future()
    one = OnePublish(reply, services.clock.monotonic())
    order = PublishOrder[OnePublish](
        services,
        answer=lambda asked, reply: None if asked.reply.done() else asked.reply.set_result(reply),
        fail=lambda asked, error: None if asked.reply.done() else asked.reply.set_exception(error),
        is_wanted=lambda asked: not asked.reply.done(),
        start=asyncio.create_task,
    )
    order.publish(one, request, body)
    return one


def published(place: Placed, topic_number: int) -> protocol.Published:
    return protocol.Published(
        base_offset=place.base_offset,
        append_time=place.append_time,
        topic_number=topic_number,
        duplicate=isinstance(place, StoredRange),
        repeats={
            row: protocol.Repeat(seen.offset, seen.append_time)
            for row, seen in place.repeats.items()
        }
        if isinstance(place, StoredOnce)
        else {},
    )
