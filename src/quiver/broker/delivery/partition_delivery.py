"""One subscription's messages in one partition: drives the delivery machine.

The machine decides. This driver reads the messages that it chose, writes its records to the state log,
and stores dead letters. It hands a delivery out once the delivery is as durable as the subscription's
guarantee asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping

import msgspec
import numpy as np
import structlog
from pyroaring import BitMap64

from quiver.broker.delivery.batch_slice import extras_of
from quiver.broker.delivery.look_ahead import is_slow
from quiver.broker.delivery.machine.machine import Taken
from quiver.broker.delivery.machine.offset_sets import lowest, offset_range, offset_set
from quiver.broker.delivery.machine.outcome import Outcome
from quiver.broker.delivery.machine.records import CANCELLED, DROPPED, PURGED, AnyRecord
from quiver.broker.delivery.progress import Progress, progress_of
from quiver.broker.delivery.session_delivery import SessionDelivery
from quiver.broker.delivery.split_barrier import SplitBarrier
from quiver.broker.delivery.state_log import DeliveryStateLog
from quiver.broker.delivery.transaction_delivery import TransactionDelivery
from quiver.broker.topics.catalog import TopicRecord
from quiver.errors import OffsetOutOfRange, QuiverError
from quiver.metrics.traffic import SubscriptionCounts
from quiver.model.batch import StoredBatch
from quiver.model.clock import Clock
from quiver.model.filter import Filter
from quiver.model.ids import Microseconds, Offset
from quiver.model.subscription import Guarantee

_READ_BYTES = 256 << 10

logger = structlog.get_logger()


class Portion(msgspec.Struct, frozen=True):
    """What one receive got of one partition: the lease, and its messages.

    The rows of the entries, one after the other, are the messages at the lease's offsets, in order.
    """

    topic: str
    topic_number: int
    partition: int
    taken: Taken
    entries: list[StoredBatch]
    size: int
    """Bytes of the entries."""


class PeekedBatch(msgspec.Struct, frozen=True):
    """What a peek saw of one partition: pending messages, by state, and how often delivered."""

    topic: str
    topic_number: int
    partition: int
    offsets: BitMap64
    states: dict[str, BitMap64]
    deliveries: dict[int, BitMap64]
    entries: list[StoredBatch]


class PartitionDelivery:
    def __init__(
        self,
        *,
        subscription: int,
        topic: TopicRecord,
        partition: int,
        state: DeliveryStateLog,
        clock: Clock,
        lease_ids: Iterator[int],
        bury: Callable[[PartitionDelivery, list[StoredBatch], BitMap64], Awaitable[None]],
        counts: SubscriptionCounts | None = None,
    ) -> None:
        self.topic = topic.name
        self.is_restoring = topic.is_restoring
        """Whether its state is still to come from a backup: nothing is delivered before."""
        self.topic_number = topic.number
        self.partition = partition
        self.state = state
        self.machine = state.machines[subscription]
        self.view = self.machine.view
        self._subscription = subscription
        self._clock = clock
        self._lease_ids = lease_ids
        self._bury = bury
        self._counts = counts or SubscriptionCounts()
        self._burying: asyncio.Task[None] | None = None
        self.barrier: SplitBarrier | None = None
        """What holds it back as long as it is not its turn."""
        self._passed: dict[Offset, asyncio.Future[None] | None] = {}
        """By offset that was found to be passed: when that is durable; ``None``: it is."""
        self._ahead = Offset(0)
        """From where on it was read ahead last."""
        self._reading_ahead: asyncio.Task[None] | None = None
        self.sessions = SessionDelivery(
            self, self._commit, clock, lease_ids, self._counts, self._count_time
        )
        self.transactions = TransactionDelivery(
            self.machine, state, self._commit, clock, self._counts, self._count_time
        )
        state.on_acked[subscription] = self.transactions.acked

    @property
    def is_open(self) -> bool:
        """Whether the partition is still the one that this was made for."""
        return self.state.is_open and self.state.failure is None

    @property
    def progress(self) -> Progress:
        return progress_of(self.view, self.state.data)

    @property
    def is_its_turn(self) -> bool:
        """Whether it may be delivered, or another partition comes first."""
        return not self.is_restoring and (self.barrier is None or self.barrier.is_open())

    def has_passed(self, offset: Offset, *, may_lack: bool) -> bool:
        """Whether everything before an offset is finished for good, here and in what comes before.

        A log that ``may_lack`` messages that were committed once is passed where it ends.
        """
        end = min(offset, self.state.data.end_offset) if may_lack else offset
        if not self.is_its_turn or not self.view.has_passed(end):
            return False
        if offset not in self._passed:
            self._passed[offset] = self.state.underway() if end else None
        durable = self._passed[offset]
        return durable is None or (
            durable.done() and not durable.cancelled() and durable.exception() is None
        )

    # ------------------------------------------------------------------ delivering

    async def take(
        self,
        limit: int,
        bytes_max: int,
        consumer: str,
        visibility_us: int | None,
        among: BitMap64 | None = None,
    ) -> Portion | None:
        """Lease up to ``limit`` messages and read them; none while the partition is reopened.

        ``among``: only of these, as far as they are ready.
        """
        machine = self.machine
        if not (self.is_open if among is not None else await self.prepare(limit)):
            return None
        taken, records = machine.take(
            self._clock.time_us(),
            limit=limit,
            lease_id=next(self._lease_ids),
            consumer=consumer,
            visibility_us=visibility_us,
            among=among,
        )
        waits = machine.state.settings.guarantee is not Guarantee.AT_LEAST_ONCE
        stored = self._commit(records, at_leisure=not waits)
        if taken is None:
            return None
        try:
            if waits and stored is not None:
                await asyncio.shield(stored)  # others wait for it too
            portion = await self._read(taken, bytes_max)
            if portion is not None:
                self._count(portion)
            return portion
        except BaseException:
            self.requeue(taken.lease_id, taken.offsets)
            raise

    async def prepare(self, limit: int) -> bool:
        """Learn of enough messages for a delivery; whether the partition can be delivered from."""
        if self.is_open:
            await self.state.catch_up(self.machine, limit)
        return self.is_open

    def _count(self, portion: Portion) -> None:
        """Count a delivery; one that nobody acknowledges is also the end of its time here."""
        taken, counts = portion.taken, self._counts
        counts.delivered += len(taken.offsets)
        counts.delivered_bytes += portion.size
        if len(taken.deliveries) > 1 or 1 not in taken.deliveries:
            for count, offsets in taken.deliveries.items():
                if count > 1:
                    counts.redelivered += offsets.intersection_cardinality(taken.offsets)
        if self.machine.state.settings.guarantee is Guarantee.AT_MOST_ONCE:
            self._count_time(taken.offsets)

    def _count_time(self, offsets: BitMap64) -> None:
        """How long these messages were in the queue until now, batch by batch."""
        now, distribution = self._clock.time_us(), self._counts.time_in_queue
        for time, count in self.view.published.split(offsets):
            distribution.add(max(0, now - time) / 1e6, count)

    def requeue(self, lease_id: int, offsets: BitMap64) -> None:
        """Messages that no consumer saw are ready again, as if they had not been taken."""
        self._commit(self.machine.requeue(lease_id, offsets, self._clock.time_us()))

    async def _read(self, taken: Taken, bytes_max: int) -> Portion | None:
        """Fetch what was leased; what does not fit goes back, what is gone is finished."""
        entries, kept, left = await self.fetch(taken.offsets, bytes_max)
        if left:
            self.requeue(taken.lease_id, left)
        if not kept:
            return None
        if kept is not taken.offsets:
            taken = msgspec.structs.replace(taken, offsets=kept)
        size = sum([entry.size() for entry in entries])
        return Portion(self.topic, self.topic_number, self.partition, taken, entries, size)

    def _read_ahead(self, entries: list[StoredBatch]) -> None:
        """Have what follows these at hand when it is asked for, if it has to come from the disk.

        Only where nobody else reads: of many who read at different places, each would push out what
        another is about to need.
        """
        if not entries or len(self.state.machines) > 1 or self._reading_ahead is not None:
            return
        following = entries[-1].next_offset
        if following > self._ahead and self.state.data.read_tail(following, 1) is None:
            self._ahead = following
            self._reading_ahead = asyncio.create_task(self._read_from(following))

    async def _read_from(self, offset: Offset) -> None:
        """Read what is kept for a moment by whoever read it."""
        try:
            await self.state.data.read(offset, _READ_BYTES)
        except QuiverError:
            pass  # whoever needs it is told
        finally:
            self._reading_ahead = None

    async def fetch(
        self, offsets: BitMap64, bytes_max: int
    ) -> tuple[list[StoredBatch], BitMap64, BitMap64]:
        """The messages at these offsets, which they are, and which did not fit."""
        entries: list[StoredBatch] = []
        missing, kept, size = offsets.copy(), BitMap64(), 0
        while missing and size < bytes_max:
            found = await self._entries_from(missing)
            self._read_ahead(found)
            for entry in found:
                if len(missing) == len(offsets) and offsets.max() < entry.next_offset:
                    return [self.state.part_of(entry, offsets)], offsets, BitMap64()
                part = missing & offset_range(entry.base_offset, entry.next_offset)
                if part:
                    missing -= part
                    kept |= part
                    entries.append(self.state.part_of(entry, part))
                    size += entries[-1].size()
                    if size >= bytes_max:
                        break
        return entries, kept, missing

    async def _entries_from(self, missing: BitMap64) -> list[StoredBatch]:
        try:
            return await self.state.data.read(Offset(missing.min()), _READ_BYTES)
        except OffsetOutOfRange as error:
            first = int(error.details["first_offset"])
            gone = missing.copy()
            gone.remove_range(first, max(first, missing.max()) + 1)
            missing -= gone
            self.state.lost(self._subscription, len(gone))
            self._commit(self.machine.give_up(gone, DROPPED))
            return []

    # ------------------------------------------------------------------ settling

    def ack(self, lease_id: int, offsets: BitMap64) -> tuple[BitMap64, asyncio.Future[None] | None]:
        """Finish messages; those that the lease still held, and when that is durable.

        What was finished before is not confirmed again sooner than it is the first time.
        """
        held, records = self.machine.ack(lease_id, offsets)
        if not records:
            return held, self.state.underway() if held else None
        self._counts.acked += len(held)
        self._count_time(held)
        return held, self._commit(records)

    def nack(
        self, lease_id: int, offsets: BitMap64, delay_us: int | None, error: str | None
    ) -> tuple[BitMap64, asyncio.Future[None] | None]:
        now = self._clock.time_us()
        held, records = self.machine.nack(lease_id, offsets, now, delay_us, error)
        self._counts.nacked += len(held)
        return held, self._commit(records)

    def reject(
        self, lease_id: int, offsets: BitMap64, error: str | None
    ) -> tuple[BitMap64, asyncio.Future[None] | None]:
        held, records = self.machine.reject(lease_id, offsets, error)
        self._counts.nacked += len(held)
        return held, self._commit(records)

    def return_unread(
        self, lease_id: int, offsets: BitMap64
    ) -> tuple[BitMap64, asyncio.Future[None] | None]:
        """Like ``requeue``, for a consumer that says so itself."""
        held = self.view.held(lease_id, offsets)
        return held, self._commit(self.machine.requeue(lease_id, held, self._clock.time_us()))

    def extend(
        self, lease_id: int, offsets: BitMap64, visibility_us: int
    ) -> tuple[BitMap64, asyncio.Future[None] | None]:
        deadline = Microseconds(self._clock.time_us() + visibility_us)
        held, records = self.machine.extend(lease_id, offsets, deadline)
        return held, self._commit(records)

    def release(self, consumer: str) -> None:
        """The consumer is gone: what it holds is ready again, as if it had not been taken."""
        self._commit(self.machine.release(consumer, self._clock.time_us()))

    # ------------------------------------------------------------------ looking and clearing up

    def seek(self, start: Offset) -> asyncio.Future[None] | None:
        """Begin again at ``start``; when that is durable."""
        self._ahead = Offset(0)
        self._passed.clear()
        return self._commit(self.machine.seek(start))

    async def restore(
        self, pending: BitMap64, end: Offset, deliveries: Mapping[int, BitMap64]
    ) -> asyncio.Future[None] | None:
        """Begin again as a backup has it; when that is durable.

        What is before ``end`` and not pending is finished. Nothing is delivered meanwhile.
        """
        assert self.is_restoring, "whoever had messages would have some that are finished"
        data = self.state.data
        self.seek(data.start_offset)
        end = min(end, data.next_offset)
        await self.state.catch_up_to(self.machine, end)
        records = self.machine.restore(
            pending, end, deliveries, self._clock.time_us(), next(self._lease_ids)
        )
        self._commit(records)
        return self.state.underway()

    async def peek(self, limit: int, bytes_max: int, states: Collection[str]) -> PeekedBatch | None:
        """The first pending messages in these states, as they are now."""
        await self.state.catch_up(self.machine, limit)
        pending = {state: self.view.in_state(state) for state in states}
        chosen = lowest(BitMap64.union(BitMap64(), *pending.values()), limit)
        entries, kept, _ = await self.fetch(chosen, bytes_max)
        if not kept:
            return None
        return PeekedBatch(
            self.topic,
            self.topic_number,
            self.partition,
            kept,
            {state: part & kept for state, part in pending.items()},
            self.view.deliveries_of(kept),
            entries,
        )

    async def purge(self, condition: Filter | None) -> tuple[int, asyncio.Future[None] | None]:
        """Finish what is pending, all or what matches; how many, and when that is durable."""
        machine, end = self.machine, self.state.data.next_offset
        if condition is None:
            count = self.view.pending_count + end - self.view.observed_to
            return count, self._commit(machine.seek(end, is_purge=True))
        await self.state.catch_up_to(machine, end)
        matching = await self.matching(condition, ("ready", "delayed", "leased"))
        return len(matching), self._commit(machine.give_up(matching, PURGED))

    async def matching(
        self, condition: Filter | None, states: Collection[str], limit: int | None = None
    ) -> BitMap64:
        """The messages in these states that match; those that were looked at, no others."""
        found = BitMap64()
        left = BitMap64.union(BitMap64(), *map(self.view.in_state, states))
        while left and (limit is None or len(found) < limit):
            for entry in await self._entries_from(left):
                part = left & offset_range(entry.base_offset, entry.next_offset)
                left.remove_range(0, entry.next_offset)
                if part and condition is not None:
                    part &= await _matching_in(entry, condition)
                found |= part
            await asyncio.sleep(0)  # others have their turn
        return found if limit is None else lowest(found, limit)

    async def cancel(self, offsets: BitMap64) -> tuple[BitMap64, asyncio.Future[None] | None]:
        """Finish those of the messages that wait for their time; which, and when it is durable."""
        await self.state.catch_up_to(self.machine, Offset(offsets.max() + 1))
        cancelled = offsets & self.view.in_state("delayed")
        return cancelled, self._commit(self.machine.drop(cancelled, CANCELLED))

    async def outcome(self, offset: Offset, published: Microseconds) -> Outcome | None:
        """How a message ended, if the state log still tells."""
        return await self.state.outcome(self._subscription, offset, published)

    def tick(self) -> None:
        """Do what is due."""
        self._commit(self.machine.tick(self._clock.time_us()))
        self.bury()

    def _commit(
        self, records: list[AnyRecord], *, at_leisure: bool = False
    ) -> asyncio.Future[None] | None:
        if not records:
            return None
        self.bury()
        return self.state.commit(self._subscription, records, at_leisure=at_leisure)

    # ------------------------------------------------------------------ dead letters

    def bury(self) -> None:
        """Start to store pending dead letters, unless that is under way."""
        if self.view.dead_letter_pending and self._burying is None and self.is_open:
            self._burying = asyncio.create_task(self._store_dead_letters())

    async def wait_idle(self) -> None:
        """Wait until nothing is being buried, or read for later."""
        under_way = [one for one in (self._burying, self._reading_ahead) if one is not None]
        if under_way:
            await asyncio.wait(under_way)

    async def close(self) -> None:
        """Finish what is under way, and wait for nobody else."""
        if self.barrier is not None:
            await self.barrier.stop()
        await self.wait_idle()

    async def _store_dead_letters(self) -> None:
        """Store pending dead letters in the dead-letter topic, then record that they are there."""
        try:
            while self.view.dead_letter_pending:
                if (underway := self.state.underway()) is not None:
                    await underway  # until then another leader may deliver them again
                dead_letter_pending = self.view.dead_letter_pending.copy()
                missing = dead_letter_pending.copy()
                entries: list[StoredBatch] = []
                while missing and len(entries) < 100:
                    for entry in await self._entries_from(missing):
                        if missing.range_cardinality(entry.base_offset, entry.next_offset):
                            missing.remove_range(entry.base_offset, entry.next_offset)
                            entries.append(entry)
                buried = dead_letter_pending - missing
                await self._bury(self, entries, buried)
                self.state.commit(self._subscription, self.machine.dead_lettered(buried))
                self._counts.dead_lettered += len(buried)
        except QuiverError as error:
            logger.error("dead letters could not be stored", topic=self.topic, error=str(error))
        finally:
            self._burying = None


async def _matching_in(entry: StoredBatch, condition: Filter) -> BitMap64:
    if is_slow(condition, entry):
        mask = await asyncio.to_thread(condition.mask, entry.record_batch(), extras_of(entry))
    else:
        mask = condition.mask(entry.record_batch(), extras_of(entry))
    return offset_set(np.flatnonzero(mask) + entry.base_offset)
