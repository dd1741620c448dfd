"""The event loop's half of a producer: its partition queues, its session, and unconfirmed batches.

Everything here runs on one event loop; other threads only call ``wake``. Every accepted message is
settled: confirmed, or failed with its last error. The next ``flush`` raises a failure that was not read.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from functools import partial

from quiver.client.producer.accumulator import Accumulator, BatchLimits
from quiver.client.producer.delivery import BatchPromise, Placement
from quiver.client.producer.partition_queue import ProducerSession
from quiver.client.producer.partition_queue_driver import PartitionQueueDriver
from quiver.client.producer.pending_batch import PendingBatch
from quiver.client.producer.rerouting import changed_partitions, divided
from quiver.client.producer.wait_notice import WaitNotice
from quiver.client.transport.backoff import RetryBackoff
from quiver.client.transport.cluster import Cluster, TopicLayout, expect
from quiver.errors import ProducerError, QuiverError, RequestTimeout, TransactionAborted
from quiver.model.clock import Clock
from quiver.model.ids import PartitionIndex, ProducerEpoch, ProducerId
from quiver.model.topic import Acks, Compression
from quiver.protocol import OpenProducer, ProducerOpened

_FAILURES_KEPT = 100
_REFRESH_INTERVAL_S = 1.0
_ENCODING_S = 0.001
"""How long to wait for another thread that encodes a batch."""


class Sender:
    """Made by ``Sender.open``, on the event loop that it will live on."""

    def __init__(
        self,
        cluster: Cluster,
        layout: TopicLayout,
        limits: BatchLimits,
        *,
        acks: Acks | None,
        name: str | None,
        compression: Compression | None,
        delivery_timeout_s: float,
        clock: Clock,
    ) -> None:
        self.topic = layout.info.name
        self.cluster = cluster
        self.layout = layout
        self.name = name
        # Told explicitly, "none" is answered at once.
        default = layout.info.settings.acks
        self.acks = Acks.NONE if acks is None and default is Acks.NONE else acks
        self._is_transactional = False
        self.delivery_timeout_s = delivery_timeout_s
        self.message_bytes_max = layout.info.settings.message_bytes_max
        self.last_sequences: dict[int, int] = {}
        self.stored_before: dict[int, int] = {}
        """By partition: sequences up to this were stored before this producer was opened."""
        self._own_compression = compression
        self._clock = clock
        self._chance = random.Random()
        self._backoff = RetryBackoff()
        self.waits = WaitNotice(clock, self.topic).waits
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._session: ProducerSession | None = None
        self._drivers: dict[int, PartitionQueueDriver] = {}
        self._failures: list[BatchPromise] = []
        self._stopping: list[asyncio.Task[None]] = []
        self._refreshing: asyncio.Task[None] | None = None
        self._next_refresh = 0.0
        self.stopped_by: QuiverError | None = None
        self._moving: frozenset[int] = frozenset()
        """Partitions that have other keys in ``layout`` than in ``routing``."""
        self.accumulator = Accumulator(
            self.topic,
            layout.partitions,
            limits,
            compression=compression or layout.info.settings.compression,
            clock=clock,
            wake=self.wake,
            keeper=self._loop,
            routing=layout,
        )

    async def open(self) -> None:
        """Get a session, unless nothing is to be acknowledged."""
        if self.acks is not Acks.NONE and self._session is None:
            self._session = await self.open_session()
            self.stored_before = dict(self.last_sequences)

    def begin(self, session: ProducerSession) -> None:
        """Send for a transaction from now on. Nothing of the last one is under way."""
        self._session, self._is_transactional = session, True
        # What is committed must not be lost with a leader.
        self.acks = Acks.ALL if self.layout.info.settings.acks is Acks.ALL else Acks.QUORUM
        for driver in self._drivers.values():
            driver.queue.adopt(session)

    @property
    def reached(self) -> list[int]:
        """The partitions that may have something of the session."""
        return [one for one, driver in self._drivers.items() if driver.queue.is_used]

    def wake(self) -> None:
        """There is something new in the accumulator. From any thread."""
        if threading.get_ident() == self._thread:
            self._loop.call_soon(self._pump_woken)
        else:
            # After the loop has ended there is nothing to wake.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._pump_woken)

    def _pump_woken(self) -> None:
        for partition in self.accumulator.take_woken():
            self._driver(partition).pump()

    def _driver(self, partition: int) -> PartitionQueueDriver:
        driver = self._drivers.get(partition)
        if driver is None:
            driver = self._drivers[partition] = PartitionQueueDriver(self, partition, self._session)
            if self.stopped_by is not None:
                driver.stop()
        return driver

    # ------------------------------------------------------------------ endings

    async def flush(self, timeout_s: float | None = None) -> None:
        """Send everything accepted so far and wait until it is settled."""
        unfinished = self.send_all()
        try:
            async with asyncio.timeout(timeout_s):
                await self.accumulator.finished(unfinished)
        except TimeoutError as error:
            raise RequestTimeout(
                f"some messages were not confirmed within {timeout_s:g} s; they may still be stored"
            ) from error
        self._raise_unseen_failure()

    def send_all(self) -> list[PendingBatch]:
        """Send everything accepted so far; what is not settled yet."""
        unfinished = self.accumulator.close_all()
        for partition in {batch.promise.partition for batch in unfinished}:
            self._driver(partition).pump()
        return unfinished

    def _raise_unseen_failure(self) -> None:
        failures, self._failures = self._failures, []
        for promise in failures:
            if not promise.is_observed and promise.error is not None:
                raise promise.error.with_traceback(None)

    def stop(self, error: QuiverError, refusal: QuiverError | None = None) -> None:
        """Take nothing more, and fail whatever is not settled; later sends get the refusal."""
        self.accumulator.refuse(refusal or error)
        if self.stopped_by is not None:
            return
        self.stopped_by = error
        for driver in self._drivers.values():
            task = driver.stop()
            if task is not None:
                self._stopping.append(task)
        if self._refreshing is not None:
            self._refreshing.cancel()
            self._stopping.append(self._refreshing)
        for batch in self.accumulator.close_all():
            self._finish(batch, None, error)

    async def join(self) -> None:
        """After ``stop``: wait until no task is left."""
        current = asyncio.current_task()
        tasks = [task for task in self._stopping if task is not current and not task.done()]
        if tasks:
            await asyncio.wait(tasks)

    # ------------------------------------------------------------------ for the partition queues

    def now(self) -> float:
        return self._clock.monotonic()

    def next_batch(self, partition: int, *, is_idle: bool) -> PendingBatch | None:
        return self.accumulator.next_batch(partition, is_idle=is_idle)

    def linger_ends(self, partition: int) -> float | None:
        return self.accumulator.linger_ends(partition)

    def take_opened_before(self, partition: int, moment: float) -> list[PendingBatch]:
        return self.accumulator.take_opened_before(partition, moment)

    def stored(self, batch: PendingBatch, placement: Placement) -> None:
        partition = batch.promise.partition
        if batch.user_sequence is not None:
            known = self.last_sequences.get(partition, batch.user_sequence)
            self.last_sequences[partition] = max(known, batch.user_sequence)
        if placement.topic_number not in (None, self.layout.info.number):
            self.refresh_soon()
        self._finish(batch, placement, None)

    def lost(self, batch: PendingBatch, error: QuiverError) -> None:
        self._finish(batch, None, error)
        if self._is_transactional:
            self.stop(error)  # without it, the transaction is not what the program meant
        elif self.name is not None:
            # Going on would let a rerun take the lost message for one that is stored.
            self.stop(
                ProducerError(
                    f"producer {self.name!r} stopped after a batch failed ({error.message}); "
                    "open it again and continue from there"
                )
            )

    def _finish(
        self, batch: PendingBatch, placement: Placement | None, error: QuiverError | None
    ) -> None:
        promise = batch.promise
        self.accumulator.release(batch)
        if promise.is_done():
            return
        if error is not None:
            if len(self._failures) < _FAILURES_KEPT:
                self._failures.append(promise.given)
            promise.fail(error)
        elif placement is not None:
            promise.keep(placement)

    async def pause(self, failures: int, at_most_s: float) -> None:
        pause_s = self._backoff.pause_s(failures, self._chance)
        if pause_s > 0 and at_most_s > 0:
            await self._clock.sleep(min(pause_s, at_most_s))

    async def refresh_layout(self) -> None:
        """Learn who leads what now, and settings that producers go by."""
        layout = await self.cluster.refresh(self.topic)
        if self.layout.is_newer_than(layout) and layout.info.number == self.layout.info.number:
            return  # by a node that does not know it all yet
        self.layout = layout
        self.message_bytes_max = layout.info.settings.message_bytes_max
        self.accumulator.compression = self._own_compression or layout.info.settings.compression
        self._moving = frozenset()
        if layout.is_newer_than(self.routing):
            if layout.info.number == self.routing.info.number:
                self._moving = changed_partitions(self.routing, layout)
            self.move()

    # ------------------------------------------------------------------ another layout

    @property
    def routing(self) -> TopicLayout:
        """What messages are routed by: the newest layout, once all that was routed before is where
        it belongs."""
        assert self.accumulator.routing is not None, "there is one from the beginning"
        return self.accumulator.routing

    def is_moving(self, partition: int) -> bool:
        return partition in self._moving

    def move(self) -> None:
        """Route by the newest layout as soon as it is certain what the old one's batches became.

        Those of which nothing is stored are divided anew, ahead of everything that comes later.
        """
        queues = {
            partition: driver.queue
            for partition, driver in self._drivers.items()
            if partition in self._moving
        }
        if self.stopped_by is not None or not self.layout.is_newer_than(self.routing):
            return
        if not all(queue.is_certain for queue in queues.values()):
            return
        old, new, moving = self.routing, self.layout, self._moving
        waiting = self.accumulator.adopt(new, moving)
        if waiting is None:
            self._loop.call_later(_ENCODING_S, self.move)
            return
        self._moving = frozenset()
        for partition in sorted(moving):
            batches = waiting.get(partition, [])
            if partition in queues:
                batches = [*queues[partition].release(), *batches]
            self.accumulator.put_first(self._rerouted(batches, partition, old, new))
        grown = set(new.partitions) - set(old.partitions)
        for partition in grown:
            first, _ = new.router.ranges[PartitionIndex(partition)]
            self._inherit(partition, old.router.owner(first))
        for partition in sorted(moving | grown):
            self._driver(partition).pump()

    def _inherit(self, partition: int, parent: int) -> None:
        """What was stored of a new partition's range before it was there is in its parent."""
        if parent in self.stored_before:
            self.stored_before[partition] = self.stored_before[parent]

    def _rerouted(
        self, batches: list[PendingBatch], partition: int, old: TopicLayout, new: TopicLayout
    ) -> list[PendingBatch]:
        """The same messages in batches of the partitions they belong to now."""
        rerouted: list[PendingBatch] = []
        for batch in batches:
            parts = divided(batch, partition, old, new, self.accumulator.compression)
            if parts != [batch]:
                self.accumulator.divide(batch, parts)
                batch.promise.on_done(partial(self.accumulator.release, batch))
            rerouted += parts
        return rerouted

    def refresh_soon(self) -> None:
        """What is known of the topic seems to be out of date. From any thread."""
        now = self.now()
        if now >= self._next_refresh:
            self._next_refresh = now + _REFRESH_INTERVAL_S
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._start_refresh)

    def _start_refresh(self) -> None:
        if self.stopped_by is None and (self._refreshing is None or self._refreshing.done()):
            self._refreshing = asyncio.create_task(self._refresh())

    async def _refresh(self) -> None:
        with contextlib.suppress(QuiverError):
            await self.refresh_layout()

    async def open_session(self) -> ProducerSession:
        if self._is_transactional:
            raise TransactionAborted("a message of the transaction could not be stored")
        topic = self.topic if self.name is not None else None
        request = OpenProducer(name=self.name, topic=topic)
        _, (reply, _) = await self.cluster.call(request, repeatable=True)
        opened = expect(ProducerOpened, reply)
        self.last_sequences |= opened.last_sequences
        return ProducerSession(ProducerId(opened.producer_id), ProducerEpoch(opened.producer_epoch))
