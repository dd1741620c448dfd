"""Messages on their way into batches: one open batch for each partition, within a bound.

``add`` is the hot path. It may be called from any thread, never waits, and wakes the event loop only
when there is something new to do: a batch is full, or a partition of which everything was taken got a
message. Whoever fills a batch also encodes it, in its own thread. The event loop takes
batches in the order in which they were closed.

Invariant: the bytes added and not yet released never pass ``buffer_bytes``, save for one message
that is larger than the whole buffer.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from quiver.client.producer.buffer_budget import BufferBudget
from quiver.client.producer.delivery import BatchPromise, Delivery
from quiver.client.producer.pending_batch import PendingBatch
from quiver.client.transport.cluster import TopicLayout
from quiver.errors import InvalidBatch, QuiverError
from quiver.model.batch import UnstoredBatch
from quiver.model.clock import Clock
from quiver.model.topic import Compression


class Rerouted(Exception):
    """The topic's layout has changed since the message was routed: route it again."""


class BatchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """When a batch is closed, and how much may be under way."""

    batch_bytes: int = 1 << 20
    batch_count: int = 10_000
    linger_s: float = 0.005
    """How long a batch waits for more messages while others of its partition are under way."""
    buffer_bytes: int = 64 << 20
    """Bytes not yet acknowledged, over all partitions."""


class _Slot:
    """One partition: the batch that takes messages, and those that are closed, oldest first."""

    __slots__ = ("closed", "is_empty", "open", "partition")

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.open: PendingBatch | None = None
        self.closed: deque[PendingBatch] = deque()
        self.is_empty = True
        """Everything was taken: the next message is worth waking the event loop for."""


class Accumulator:
    """``wake`` is called from any thread, without the lock, when ``woken`` has something new."""

    def __init__(
        self,
        topic: str,
        partitions: Iterable[int],
        limits: BatchLimits,
        *,
        compression: Compression,
        clock: Clock,
        wake: Callable[[], None],
        keeper: asyncio.AbstractEventLoop | None = None,
        routing: TopicLayout | None = None,
    ) -> None:
        self.routing = routing
        """What keys are routed by; whatever was routed by another is refused."""
        self._topic = topic
        self._limits = limits
        self._batch_bytes, self._batch_count = limits.batch_bytes, limits.batch_count
        self._monotonic = clock.monotonic
        self._wake = wake
        self._keeper = keeper
        self._lock = threading.Lock()
        self.budget = BufferBudget(limits.buffer_bytes, self._lock)
        self._slots = {partition: _Slot(partition) for partition in partitions}
        self._round = list(self._slots.values())
        self._turn = 0
        self._sticky = self._round[0]
        self._woken: list[int] = []
        self._unfinished: set[PendingBatch] = set()
        self.compression = compression

    # ------------------------------------------------------------------ any thread

    def add(
        self,
        payload: bytes,
        size: int,
        partition: int | None = None,
        key: bytes | None = None,
        columns: dict[str, Any] | None = None,
        routing: TopicLayout | None = None,
    ) -> Delivery:
        """Put a checked message into its partition's batch; ``BufferFull`` if there is no room.

        Without a partition it goes where the last such message went, until that batch is closed.
        ``routing`` is the layout that the partition was found by, unless the user has named it.
        """
        with self._lock:
            if routing is not None and routing is not self.routing:
                raise Rerouted
            budget = self.budget
            used = budget.used + size
            if used > budget.limit:
                budget.take(size)
            slot = self._sticky if partition is None else self._slots[partition]
            batch = slot.open
            closed = None
            if batch is None:
                batch = self._open(slot)
            elif batch.size + size > self._batch_bytes:
                closed = self._close(slot)
                slot = self._sticky if partition is None else slot
                batch = slot.open or self._open(slot)
            if key is None and columns is None:
                place = len(batch.payloads)
                batch.payloads.append(payload)
            else:
                place = self._add_columns(batch, payload, key, columns)
            if partition is not None:
                if routing is not None:
                    batch.is_routed = True
                else:
                    batch.pinned.add(place)
            batch.size += size
            budget.used = used
            if batch.size < self._batch_bytes and place + 1 < self._batch_count:
                if not slot.is_empty and closed is None:
                    return Delivery(batch.promise, place)
                full = None
            else:
                full = self._close(slot)
            slot.is_empty = False
        self._finish(slot, closed, full)
        return Delivery(batch.promise, place)

    def add_plain(self, payloads: Sequence[bytes], size: int) -> Sequence[Delivery] | None:
        """``add`` all of these, which have no partition; ``None`` if they do not fit into one batch."""
        count = len(payloads)
        with self._lock:
            slot, budget = self._sticky, self.budget
            batch = slot.open
            place = 0 if batch is None else len(batch.payloads)
            filled = size if batch is None else batch.size + size
            if filled >= self._batch_bytes or place + count >= self._batch_count:
                return None
            if budget.used + size > budget.limit:
                return None
            if batch is None:
                batch = self._open(slot)
            batch.payloads.extend(payloads)
            batch.size = filled
            budget.used += size
            is_news, slot.is_empty = slot.is_empty, False
        if is_news:
            self._finish(slot)
        return [Delivery(batch.promise, at) for at in range(place, place + count)]

    def add_encoded(
        self,
        partition: int | None,
        encoded: UnstoredBatch,
        *,
        routing: TopicLayout | None = None,
        user_sequence: int | None = None,
    ) -> BatchPromise:
        """Put in a batch that is encoded already, behind what was added before it."""
        size = encoded.size()
        with self._lock:
            if routing is not None and routing is not self.routing:
                raise Rerouted
            self.budget.take(size)
            slot = self._sticky if partition is None else self._slots[partition]
            closed = self._close(slot) if slot.open is not None else None
            batch = self._open(slot)
            batch.encoded, batch.builder, batch.size = encoded, None, size
            batch.is_routed, batch.user_sequence = routing is not None, user_sequence
            self._close(slot)
            slot.is_empty = False
        self._finish(slot, closed)
        return batch.promise

    def _open(self, slot: _Slot) -> PendingBatch:
        self.budget.check()
        promise = BatchPromise(self._topic, slot.partition, self._keeper)
        slot.open = batch = PendingBatch(promise, self._monotonic())
        self._unfinished.add(batch)
        return batch

    def _add_columns(
        self, batch: PendingBatch, payload: bytes, key: bytes | None, columns: dict[str, Any] | None
    ) -> int:
        assert batch.builder is not None, "an open batch takes messages"
        try:
            if columns is None:
                return batch.builder.add(payload, key)
            batch.user_sequence = columns.get("sequence", batch.user_sequence)
            return batch.builder.add(payload, key, **columns)
        except BaseException:
            # Interrupted half-way, its columns may not match its payloads any more.
            batch.failure = InvalidBatch("the batch was interrupted while it was filled")
            raise

    def _close(self, slot: _Slot) -> PendingBatch:
        """No more messages go into the slot's batch, which now waits its turn to be sent."""
        batch = slot.open
        assert batch is not None, "there is a batch to close"
        slot.open = None
        batch.count = len(batch.builder) if batch.builder is not None else _count(batch)
        slot.closed.append(batch)
        if slot is self._sticky:
            self._turn = (self._turn + 1) % len(self._round)
            self._sticky = self._round[self._turn]
        return batch

    def _finish(self, slot: _Slot, *closed: PendingBatch | None) -> None:
        """Encode what this thread has closed, and tell the event loop."""
        batches = [batch for batch in closed if batch is not None]
        try:
            for batch in batches:
                self.encode(batch)
        finally:
            with self._lock:
                is_news = not self._woken
                self._woken += [slot.partition, *(each.promise.partition for each in batches)]
            if is_news:
                self._wake()

    def encode(self, batch: PendingBatch) -> None:
        """Make the batch's bytes, unless another thread is doing it."""
        mine = False
        try:
            with self._lock:
                if batch.is_claimed or batch.builder is None or batch.failure is not None:
                    return
                batch.is_claimed = mine = True
            self._build(batch)
        finally:
            if mine:
                batch.is_claimed = False

    def _build(self, batch: PendingBatch) -> None:
        assert batch.builder is not None, "it is not encoded yet"
        try:
            batch.encoded = batch.builder.build(self.compression)
            batch.builder, batch.payloads = None, []
        except QuiverError as error:
            batch.failure = error
        except (ArithmeticError, ValueError, TypeError) as error:
            batch.failure = InvalidBatch(f"the batch cannot be encoded: {error}")

    # ------------------------------------------------------------------ the event loop only

    def take_woken(self) -> list[int]:
        """The partitions that have something new since this was last asked."""
        with self._lock:
            woken, self._woken = self._woken, []
        return list(dict.fromkeys(woken))

    def next_batch(self, partition: int, *, is_idle: bool) -> PendingBatch | None:
        """The next batch to send, if one is ready.

        An open batch is ready when it has waited long enough, or at once if nothing of its
        partition is under way (``is_idle``). If there is none, the next message will wake.
        """
        with self._lock:
            slot = self._slots[partition]
            if not slot.closed:
                if slot.open is None:
                    slot.is_empty = True
                    return None
                if not is_idle and self._monotonic() < slot.open.opened + self._limits.linger_s:
                    return None
                self._close(slot)
            batch = slot.closed[0]
            if batch.is_claimed:
                return None
        self.encode(batch)
        if batch.encoded is None and batch.failure is None:
            return None
        with self._lock:
            slot.closed.popleft()
        return batch

    def linger_ends(self, partition: int) -> float | None:
        """When the partition's open batch has waited long enough; ``None`` if there is none."""
        with self._lock:
            batch = self._slots[partition].open
            return None if batch is None else batch.opened + self._limits.linger_s

    def take_opened_before(self, partition: int, moment: float) -> list[PendingBatch]:
        """Take out every batch that was opened by then, to be failed."""
        with self._lock:
            slot, taken = self._slots[partition], []
            if slot.open is not None and slot.open.opened <= moment:
                self._close(slot)
            while slot.closed and slot.closed[0].opened <= moment and not slot.closed[0].is_claimed:
                taken.append(slot.closed.popleft())
            return taken

    def close_all(self) -> list[PendingBatch]:
        """Close every open batch; all that is unfinished. The caller sends it: nobody is woken."""
        with self._lock:
            self._woken.clear()
            for slot in self._slots.values():
                if slot.open is not None:
                    self._close(slot)
            return list(self._unfinished)

    async def finished(self, batches: list[PendingBatch]) -> None:
        """Wait until all of these have been released."""
        while any(batch in self._unfinished for batch in batches):
            await self.budget.change()

    def release(self, batch: PendingBatch) -> None:
        """The batch is finished: its bytes make room for others."""
        with self._lock:
            self._unfinished.discard(batch)
            self.budget.release(batch.size)
            batch.encoded = batch.builder = None
            batch.payloads = []
        self.budget.wake()

    def refuse(self, error: QuiverError) -> None:
        """Take nothing more; those who wait for room are told."""
        with self._lock:
            self.budget.refuse(error)
            for slot in self._slots.values():
                if slot.open is not None:
                    self._close(slot)
        self.budget.wake()

    # ------------------------------------------------------------------ another layout

    def adopt(
        self, layout: TopicLayout, moving: Iterable[int]
    ) -> dict[int, list[PendingBatch]] | None:
        """Route by another layout from now on; everything that waits in the ``moving`` partitions.

        ``None``, and nothing has changed, while another thread encodes one of those batches.
        """
        with self._lock:
            slots = [self._slots[partition] for partition in moving if partition in self._slots]
            for slot in slots:
                if slot.open is not None:
                    self._close(slot)
            waiting = {slot.partition: list(slot.closed) for slot in slots}
            unbuilt = [
                batch
                for batches in waiting.values()
                for batch in batches
                if batch.builder is not None and batch.failure is None
            ]
            if any(batch.is_claimed for batch in unbuilt):
                return None
            for batch in unbuilt:
                batch.is_claimed = True  # nobody else encodes it
            for slot in slots:
                slot.closed.clear()
            self.routing = layout
            for partition in layout.partitions:
                if partition not in self._slots:
                    self._slots[partition] = _Slot(partition)
            self._round = list(self._slots.values())
        for batch in unbuilt:
            self._build(batch)
            batch.is_claimed = False
        return waiting

    def put_first(self, batches: Iterable[PendingBatch]) -> None:
        """These are the next to be sent in their partitions, in this order."""
        with self._lock:
            for batch in reversed(list(batches)):
                slot = self._slots[batch.promise.partition]
                slot.closed.appendleft(batch)
                slot.is_empty = False
                self._unfinished.add(batch)

    def divide(self, batch: PendingBatch, parts: Iterable[PendingBatch]) -> None:
        """The messages of a batch are in others now, and so are its bytes of the buffer."""
        with self._lock:
            self._unfinished.update(parts)
            batch.size, batch.encoded = 0, None


def _count(batch: PendingBatch) -> int:
    assert batch.encoded is not None, "a batch without a builder is encoded"
    return batch.encoded.count
