"""Performs what a partition queue decides: sends its batches, takes the answers, and clears the way again.

While all is well everything happens in callbacks, with no task in between. When the queue is blocked
(no channel, a failure, a hole in its sequences) one task backs off, finds the partition's node,
opens a session if need be, and gives up what has waited too long.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Protocol

from quiver.client.producer.delivery import Placement
from quiver.client.producer.partition_queue import PartitionQueue, ProducerSession, Verdict
from quiver.client.producer.pending_batch import PendingBatch
from quiver.client.transport.channel import Answer, Channel
from quiver.client.transport.cluster import Cluster, TopicLayout
from quiver.client.transport.pool import SOON_S
from quiver.errors import (
    ConnectionLost,
    LeaderChanged,
    NotLeader,
    PartitionNotFound,
    QuiverError,
    RequestTimeout,
    ShuttingDown,
    StaleLayout,
    TopicNotFound,
)
from quiver.model.envelope import seal_batch
from quiver.model.topic import Acks
from quiver.protocol import Publish, Published

REQUEST_TIMEOUT_S = 5.0
"""A leader that is cut off from its followers cannot say so: another may lead the partition by then."""
_ANSWER_GRACE_S = 2.0
"""How much longer than the node the client waits, so that the node's own word arrives."""
_REQUEST_TIMEOUT_S_MIN = 0.1
_MOVED = (
    StaleLayout,
    TopicNotFound,
    PartitionNotFound,
    ConnectionLost,
    NotLeader,
    LeaderChanged,
    RequestTimeout,
    ShuttingDown,
)
"""After these, the partition may be led by another node."""


class PartitionQueueOwner(Protocol):
    """What a driver needs of the producer that it sends for."""

    topic: str
    acks: Acks | None
    cluster: Cluster
    delivery_timeout_s: float

    @property
    def layout(self) -> TopicLayout: ...
    @property
    def routing(self) -> TopicLayout: ...
    def is_moving(self, partition: int) -> bool: ...
    def move(self) -> None: ...
    def now(self) -> float: ...
    def next_batch(self, partition: int, *, is_idle: bool) -> PendingBatch | None: ...
    def linger_ends(self, partition: int) -> float | None: ...
    def take_opened_before(self, partition: int, moment: float) -> list[PendingBatch]: ...
    def stored(self, batch: PendingBatch, placement: Placement) -> None: ...
    def lost(self, batch: PendingBatch, error: QuiverError) -> None: ...
    def stop(self, error: QuiverError) -> None: ...
    def waits(self, since: float, error: QuiverError) -> None: ...
    async def pause(self, failures: int, at_most_s: float) -> None: ...
    async def refresh_layout(self) -> None: ...
    async def open_session(self) -> ProducerSession: ...


class PartitionQueueDriver:
    """One partition of one producer; lives on the event loop."""

    def __init__(
        self, owner: PartitionQueueOwner, partition: int, session: ProducerSession | None
    ) -> None:
        self.queue = PartitionQueue(partition, session)
        self._owner = owner
        self._partition = partition
        self._channel: Channel | None = None
        self._clearing: asyncio.Task[None] | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._layout_is_stale = False
        self._stopped = False

    def pump(self) -> None:
        """Send whatever can be sent now."""
        if self._clearing is not None or self._stopped:
            return
        queue = self.queue
        if queue.is_certain and self._owner.is_moving(self._partition):
            self._owner.move()  # when that is done, this is called again
            return
        if queue.is_recovering or queue.needs_session:
            if queue.is_settled and (queue.unacknowledged or self._pull() is not None):
                self._clear_the_way()
            return
        while queue.can_send:
            batch = queue.next_to_send()
            if batch is None:
                if queue.has_hole or self._pull() is None:
                    break
                continue
            if self._channel is None or not self._channel.is_open or self._channel.is_congested:
                self._clear_the_way()
                return
            self._send(self._channel, batch)
        if queue.can_send and queue.in_flight and self._linger is None:
            self._send_lingering_later()

    def _send_lingering_later(self) -> None:
        """Come back when the batch that takes messages has waited long enough, if there is one."""
        ends = self._owner.linger_ends(self._partition)
        if ends is not None:
            after_s = max(0.0, ends - self._owner.now())
            self._linger = asyncio.get_running_loop().call_later(after_s, self._lingered)

    def stop(self) -> asyncio.Task[None] | None:
        """Send nothing more; the task to wait for, if one is under way."""
        self._stopped = True
        if self._linger is not None:
            self._linger.cancel()
        if self._clearing is not None:
            self._clearing.cancel()
        return self._clearing

    def _pull(self) -> PendingBatch | None:
        """Take over the accumulator's next batch."""
        while True:
            is_idle = not self.queue.unacknowledged
            batch = self._owner.next_batch(self._partition, is_idle=is_idle)
            if batch is None:
                return None
            if batch.failure is None:
                self.queue.append(batch)
                return batch
            self._owner.lost(batch, batch.failure)

    def _lingered(self) -> None:
        self._linger = None
        self.pump()

    # ------------------------------------------------------------------ while all is well

    def _send(self, channel: Channel, batch: PendingBatch) -> None:
        owner, stamp = self._owner, self.queue.sent(batch)
        assert batch.encoded is not None, "batches are encoded before they get here"
        sealed = batch.encoded
        if stamp is not None:
            sealed = seal_batch(sealed.body, sealed.count, sealed.columns, stamp, self.queue.flags)
        left_s = batch.opened + owner.delivery_timeout_s - owner.now()
        timeout_s = max(_REQUEST_TIMEOUT_S_MIN, min(REQUEST_TIMEOUT_S, left_s))
        request = Publish(
            topic=owner.topic,
            partition=self._partition,
            acks=owner.acks,
            timeout_ms=round(timeout_s * 1000),
            layout=owner.routing.version if batch.is_routed else 0,
        )
        answer = channel.start(request, (sealed.head, sealed.body), timeout_s + _ANSWER_GRACE_S)
        batch.channel, batch.request_id = None if answer.done() else channel, request.id
        answer.add_done_callback(partial(self._answered, batch))
        if owner.acks is Acks.NONE and not batch.promise.is_done():
            batch.promise.keep(Placement())

    def _answered(self, batch: PendingBatch, answer: asyncio.Future[Answer]) -> None:
        error = _error_of(answer)
        if self._stopped:
            return
        is_over = self._owner.acks is Acks.NONE and not isinstance(error, StaleLayout)
        if error is None or is_over:
            self.queue.acknowledged(batch)
            placement = (
                Placement() if error is not None else _placement(answer.result()[0], batch.attempts)
            )
            self._owner.stored(batch, placement)
        else:
            self._failed(batch, error)
        self.pump()

    def _failed(self, batch: PendingBatch, error: QuiverError) -> None:
        if isinstance(error, _MOVED):
            self._layout_is_stale = True
        verdict = self.queue.failed(batch, error)
        if verdict is Verdict.STOP:
            self._owner.stop(error)
        elif verdict is Verdict.GIVE_UP:
            self._owner.lost(batch, error)

    # ------------------------------------------------------------------ when it is not

    def _clear_the_way(self) -> None:
        assert self._clearing is None
        self._clearing = asyncio.create_task(self._clear())
        self._clearing.add_done_callback(self._cleared)

    def _cleared(self, task: asyncio.Task[None]) -> None:
        self._clearing = None
        if task.cancelled() or self._stopped:
            return
        error = task.exception()
        if error is not None:
            self._owner.stop(QuiverError(f"the producer failed: {error!r}"))
            return
        self.pump()

    async def _clear(self) -> None:
        """Come back when batches can be sent, or there are none left to send."""
        queue = self.queue
        while self._expire():
            oldest = queue.unacknowledged[0]
            if oldest.last_error is not None:
                self._owner.waits(oldest.opened, oldest.last_error)
            deadline = oldest.opened + self._owner.delivery_timeout_s
            await self._owner.pause(queue.failures, deadline - self._owner.now())
            try:
                await self._find_the_way()
            except QuiverError as error:
                queue.failures += 1
                self._layout_is_stale = True
                self._note(error)
            else:
                if queue.is_settled:
                    queue.resume()
                return

    async def _find_the_way(self) -> None:
        owner, queue = self._owner, self.queue
        if self._layout_is_stale:
            owner.cluster.doubt(owner.topic)
            await owner.refresh_layout()
            self._layout_is_stale = False
        address = owner.layout.address(self._partition)
        try:
            async with asyncio.timeout(SOON_S):  # another node may lead it before this one answers
                channel = await owner.cluster.pool.channel(address)
        except TimeoutError:
            raise ConnectionLost(f"{address} did not answer within {SOON_S:g} s") from None
        await channel.drain()
        if queue.needs_session and queue.is_settled:
            queue.adopt(await owner.open_session())
        self._channel = channel

    def _expire(self) -> bool:
        """Give up what has waited too long; whether anything is left to send."""
        opened_by = self._owner.now() - self._owner.delivery_timeout_s
        if self.queue.is_settled:
            for batch in self.queue.expire(opened_by):
                self._lose(batch)
            if not self.queue.unacknowledged:
                for batch in self._owner.take_opened_before(self._partition, opened_by):
                    self._lose(batch)
                self._pull()
        return bool(self.queue.unacknowledged)

    def _note(self, error: QuiverError) -> None:
        """The way is blocked by this; for good, if waiting does not help."""
        for batch in list(self.queue.unacknowledged):
            batch.last_error = error
            if not error.retryable and not batch.is_in_flight:
                self.queue.give_up(batch)
                self._lose(batch)

    def _lose(self, batch: PendingBatch) -> None:
        error = batch.failure or batch.last_error
        self._owner.lost(batch, error or ConnectionLost("no node accepted the message in time"))


def _error_of(answer: asyncio.Future[Answer]) -> QuiverError | None:
    if answer.cancelled():
        return ConnectionLost("the publish was cancelled before it was answered")
    error = answer.exception()
    if error is None or isinstance(error, QuiverError):
        return error
    return QuiverError(f"the publish failed: {error!r}")


def _placement(reply: object, attempts: int) -> Placement:
    """Where the node says it stored a batch; an offset below zero is one it has forgotten.

    To the user a repeat of our own is not one: its first attempt was what stored it.
    """
    if not isinstance(reply, Published):
        return Placement()
    duplicate = reply.duplicate and attempts == 1
    if reply.repeats:
        return Placement(
            reply.base_offset if reply.base_offset >= 0 else None,
            reply.append_time,
            reply.topic_number,
            duplicate,
            reply.repeats,
        )
    if reply.base_offset < 0:
        return Placement(topic_number=reply.topic_number, duplicate=duplicate)
    return Placement(reply.base_offset, reply.append_time, reply.topic_number, duplicate)
