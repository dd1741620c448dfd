"""An active subscription: its consumers share the messages of all its partitions.

A receive takes ready messages, partition by partition in turn, or waits for some. Waiting consumers are
served in order of arrival, and a new message wakes one of them, not all.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice

import msgspec

from quiver.broker.delivery.lease_token import TokenSigner
from quiver.broker.delivery.machine.view import Depth
from quiver.broker.delivery.partition_delivery import PartitionDelivery, PeekedBatch, Portion
from quiver.broker.group.coordinator import GroupCoordinator
from quiver.broker.subscription.catalog import SubscriptionRecord
from quiver.broker.subscription.copied_partition import CopiedPartition
from quiver.broker.subscription.ready_watchers import ReadyWatchers
from quiver.broker.subscription.sessions import ConsumerSessions
from quiver.broker.subscription.settlement import visibility_us_of
from quiver.broker.subscription.settler import Settler, all_stored
from quiver.errors import InvalidRequest, Overloaded
from quiver.metrics.traffic import SubscriptionCounts
from quiver.model.clock import Clock
from quiver.model.filter import Filter
from quiver.model.ids import Offset
from quiver.model.subscription import RECEIVE_MAX, Ordering

WAIT_S_MAX = 20.0
WAITERS_MAX = 10_000
CONSUMERS_MAX = 100
"""How many consumers are named."""


class _Waiter(msgspec.Struct, eq=False):
    woken: asyncio.Future[None]
    consumer: str
    partitions: Collection[str] | None


class Subscription:
    def __init__(
        self,
        record: SubscriptionRecord,
        signer: TokenSigner,
        clock: Clock,
        counts: SubscriptionCounts | None = None,
        release_remote: Callable[[str], None] = lambda consumer: None,
        delivers: Callable[[int, int], bool] = lambda topic, partition: False,
    ) -> None:
        """``delivers`` says of a topic's number and a partition whether it delivers that, on any node."""
        self.record = record
        self.deliveries: dict[tuple[int, int], PartitionDelivery] = {}
        self.copied: list[CopiedPartition] = []
        """Those here that it delivers nothing from, as another cluster does."""
        self.version: tuple[int, int] | None = None
        """For which topics and partitions of this node it was put to work."""
        self.is_resting = False
        """Whether nothing was due at the last tick, and nobody has used it since."""
        self._clock = clock
        self._order: deque[PartitionDelivery] = deque()
        self._waiters: deque[_Waiter] = deque()
        self._watchers = ReadyWatchers(clock, self._notify_if_ready)
        self.settler = Settler(self, signer, delivers)
        self.sessions = ConsumerSessions(self, clock, self.settler.find_lease, self._may_take)
        self.membership: GroupCoordinator | None = None
        if record.settings.ordering is Ordering.PARTITION:
            self.membership = GroupCoordinator(
                record.name, record.settings, clock, self.notify_all, counts, release_remote
            )

    def alter(self, record: SubscriptionRecord) -> None:
        """It has other settings, perhaps other topics: whoever uses it next brings it up to date."""
        self.record = record
        self.version = None
        self.is_resting = False
        self.sessions.alter(record.settings)
        self.notify_all()

    def replace(
        self,
        deliveries: dict[tuple[int, int], PartitionDelivery],
        version: tuple[int, int] | None,
        places: Collection[tuple[str, int]],
        copied: list[CopiedPartition],
    ) -> None:
        """From now on these are its partitions here; ``places`` are all it has, wherever.

        Without a ``version`` some of those here are missing: whoever uses it next tries again.
        """
        self.version, self.copied = version, copied
        if self.membership is not None:
            self.membership.read(deliveries.values(), places)
        if deliveries != self.deliveries:
            self.deliveries = deliveries
            self._order = deque(deliveries.values())
            self.sessions.replace(deliveries.values())
            self.notify()

    @property
    def is_open(self) -> bool:
        """Whether its partitions are still those that it was put to work on."""
        return all(one.is_open for one in self.partitions)

    @property
    def partitions(self) -> list[PartitionDelivery | CopiedPartition]:
        """All that this node leads."""
        return [*self.deliveries.values(), *self.copied]

    @property
    def depth(self) -> Depth:
        depths = [msgspec.structs.astuple(one.view.depth) for one in self.partitions]
        return Depth(*map(sum, zip(*depths, strict=True))) if depths else Depth(0, 0, 0, 0, 0)

    @property
    def unseen(self) -> int:
        """Messages that are stored and have not been looked at."""
        return sum(one.progress.unseen for one in self.partitions)

    @property
    def consumers(self) -> list[str]:
        """Who holds messages or waits for some; of many, some."""
        found = {waiter.consumer for waiter in islice(self._waiters, CONSUMERS_MAX)}
        found |= {watcher.consumer for watcher in islice(self._watchers, CONSUMERS_MAX)}
        found |= {consumer.name for consumer in islice(self.sessions, CONSUMERS_MAX)}
        for delivery in self.deliveries.values():
            found |= delivery.view.consumers
        return sorted(found)[:CONSUMERS_MAX]

    # ------------------------------------------------------------------ receiving

    async def receive(
        self,
        limit: int,
        *,
        bytes_max: int,
        consumer: str,
        visibility_s: float | None,
        partitions: Collection[str] | None = None,
    ) -> list[Portion]:
        """Up to ``limit`` messages, leased to the consumer; none if nothing is ready.

        ``partitions``: what it reads, if the group's coordinator has said so.
        """
        if not 1 <= limit <= RECEIVE_MAX:
            raise InvalidRequest(f"a receive takes 1 to {RECEIVE_MAX:,} messages, not {limit:,}")
        visibility_us = None if visibility_s is None else visibility_us_of(visibility_s)
        if self.membership is not None and partitions is None:
            self.membership.seen(consumer)
        self._watchers.asked()
        may_take = self._may_take(consumer, partitions)
        portions: list[Portion] = []
        try:
            await self._take(portions, limit, max(1, bytes_max), consumer, visibility_us, may_take)
        except BaseException:
            self.requeue(portions)
            raise
        finally:
            self.is_resting = False
            if self._is_awaited and (self._has_ready() or self._lapses_soon(portions)):
                self.notify()
        return portions

    def requeue(self, portions: Iterable[Portion]) -> None:
        """What was received and reached no consumer is ready again at once."""
        for portion in portions:
            delivery = self.deliveries.get((portion.topic_number, portion.partition))
            if delivery is not None:
                delivery.requeue(portion.taken.lease_id, portion.taken.offsets)
        self.notify()

    def _may_take(
        self, consumer: str | None, partitions: Collection[str] | None
    ) -> Callable[[PartitionDelivery], bool]:
        """Which partitions are for this consumer: all whose turn it is, but in a group."""
        group = self.membership
        if partitions is not None:
            return lambda box: f"{box.topic}/{box.partition}" in partitions and box.is_its_turn
        if group is None or consumer is None:
            return lambda box: box.is_its_turn
        return lambda box: group.may_take(consumer, box) and box.is_its_turn

    async def wait(
        self, seconds: float, consumer: str = "", partitions: Collection[str] | None = None
    ) -> None:
        """Wait until something may be ready, in line with all who wait, or the time is over."""
        if self._has_ready(consumer, partitions):
            return  # since the caller looked
        self._require_room()
        waiter = _Waiter(asyncio.get_running_loop().create_future(), consumer, partitions)
        self._waiters.append(waiter)
        self.is_resting = False
        pause = min(seconds, self._until_next_event())
        timer = asyncio.ensure_future(self._clock.sleep(pause))
        timer.add_done_callback(lambda _: _wake(waiter))
        try:
            await waiter.woken
        except asyncio.CancelledError:
            if not waiter.woken.cancelled():
                self.notify()  # another one: this one will not look
            raise
        finally:
            if timer.done() or waiter.woken.cancelled():
                with contextlib.suppress(ValueError):
                    self._waiters.remove(waiter)
            timer.cancel()

    async def watch(
        self, seconds: float, consumer: str = "", partitions: Collection[str] | None = None
    ) -> bool:
        """Wait like ``wait``, and take nothing. Whether a receive may get something now."""
        self.do_due()
        if self._may_have(consumer, partitions):
            return True
        self._require_room()
        pause = min(seconds, self._until_next_event())
        self.is_resting = False
        await self._watchers.wait(pause, consumer, partitions)
        self.do_due()
        return self._may_have(consumer, partitions)

    @property
    def _is_awaited(self) -> bool:
        return bool(self._waiters or self._watchers)

    def _require_room(self) -> None:
        if len(self._waiters) + len(self._watchers) >= WAITERS_MAX:
            raise Overloaded(
                f"{WAITERS_MAX:,} receives already wait on {self.record.name!r}, the most allowed"
            )

    async def _take(
        self,
        portions: list[Portion],
        limit: int,
        bytes_max: int,
        consumer: str,
        visibility_us: int | None,
        may_take: Callable[[PartitionDelivery], bool],
    ) -> None:
        order = self._order
        for _ in range(len(order)):
            delivery = order[0]
            order.rotate(-1)
            if not may_take(delivery):
                continue
            portion = await delivery.take(limit, bytes_max, consumer, visibility_us)
            if portion is not None:
                portions.append(portion)
                limit -= len(portion.taken.offsets)
                bytes_max -= portion.size
                if limit <= 0 or bytes_max <= 0:
                    break

    def notify(self) -> None:
        """Something may be ready: push it, or wake the one of those who may have it that waited longest."""
        if self.sessions:
            self.sessions.push()
        if self.membership is not None:
            able = [one for one in self._waiters if self._has_ready(one.consumer, one.partitions)]
            for waiter in able:
                self._waiters.remove(waiter)
                _wake(waiter)
            self._watchers.wake_each(lambda one: self._may_have(one.consumer, one.partitions))
            return
        if self._watchers:
            ready = sum(box.view.ready_count for box in self._boxes_for(None, None))
            self._watchers.wake(ready)
        while self._waiters:
            if _wake(self._waiters.popleft()):
                return

    def notify_all(self) -> None:
        """Nothing is as it was: whoever waits is to look again."""
        if self.sessions:
            self.sessions.push()
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            _wake(waiter)
        self._watchers.wake_each(lambda _: True)

    def _notify_if_ready(self) -> None:
        if self._may_have(None, None):
            self.notify()

    def tick(self) -> None:
        """Do what is due, also for those who went to wait before it was known."""
        if self.membership is not None:
            waiting = {one.consumer for one in self._waiters}
            self.membership.alive(waiting | {one.consumer for one in self._watchers})
            for consumer in self.sessions:
                if consumer.partitions is None:
                    self.membership.seen(consumer.name)
            self.membership.tick()
        self.do_due()
        self.sessions.tick()
        if self._is_awaited and self._has_ready():
            self.notify()
        elif self.sessions:
            self.sessions.push()  # also where it is a partition's turn since
        self.is_resting = self._has_nothing_due()

    def _has_nothing_due(self) -> bool:
        """Whether a tick would do nothing, however often, until somebody uses it."""
        if self.membership is not None or self.sessions or self._is_awaited:
            return False
        views = [delivery.view for delivery in self._order]
        return not any(one.dead_letter_pending or one.next_event() is not None for one in views)

    def do_due(self) -> None:
        """End the leases and delays whose time is over."""
        now = self._clock.time_us()
        for delivery in self._order:
            event = delivery.view.next_event()
            if delivery.is_open and (
                delivery.view.dead_letter_pending or (event is not None and event <= now)
            ):
                delivery.tick()

    def _until_next_event(self) -> float:
        now = self._clock.time_us()
        events = [box.view.next_event() for box in self._order]
        soonest = min((event for event in events if event is not None), default=None)
        if soonest is None:
            return WAIT_S_MAX
        return min(WAIT_S_MAX, max(0.001, (soonest - now) / 1e6))

    def _has_ready(
        self, consumer: str | None = None, partitions: Collection[str] | None = None
    ) -> bool:
        """Whether something could be delivered, to this consumer if one is named."""
        return any(box.view.ready_count for box in self._boxes_for(consumer, partitions))

    def _may_have(self, consumer: str | None, partitions: Collection[str] | None) -> bool:
        """Whether a receive may get something: what is ready, or not looked at yet."""
        return any(
            box.view.ready_count or box.state.is_behind(box.machine)
            for box in self._boxes_for(consumer, partitions)
        )

    def _boxes_for(
        self, consumer: str | None, partitions: Collection[str] | None
    ) -> Iterator[PartitionDelivery]:
        may_take = self._may_take(consumer, partitions)
        return (box for box in self._order if box.is_open and may_take(box))

    def _lapses_soon(self, portions: list[Portion]) -> bool:
        """Whether those who wait might sleep through the end of these leases."""
        soon = self._clock.time_us() + WAIT_S_MAX * 1e6
        return any(portion.taken.deadline < soon for portion in portions)

    # ------------------------------------------------------------------ members of a group

    def heartbeat(self, consumer: str) -> list[str]:
        """The member is alive; the partitions it reads."""
        if self.membership is None:
            return []
        self.membership.seen(consumer)
        return [str(partition) for partition in self.membership.partitions_of(consumer)]

    def leave(self, consumer: str) -> None:
        """The consumer is gone for good: what it holds is ready again at once."""
        for delivery in self.deliveries.values():
            delivery.release(consumer)
        if self.membership is not None:
            self.membership.leave(consumer)
        self.notify()

    # ------------------------------------------------------------------ looking and clearing up

    async def seek(self, places: dict[tuple[int, int], Offset]) -> None:
        """Begin again at these offsets, durably; receipts given out before are good no more."""
        stored = {self.deliveries[place].seek(start) for place, start in places.items()}
        for delivery in self.deliveries.values():
            if delivery.barrier is not None:
                delivery.barrier.close()  # also where the parent alone begins again, perhaps elsewhere
        self.notify_all()
        await all_stored(stored)

    async def peek(
        self, limit: int, *, bytes_max: int, states: Collection[str]
    ) -> list[PeekedBatch]:
        """Up to ``limit`` pending messages, as they are now; nothing changes."""
        peeked_batches: list[PeekedBatch] = []
        for delivery in self.deliveries.values():
            if limit <= 0 or bytes_max <= 0 or not delivery.is_open:
                break
            peeked = await delivery.peek(limit, bytes_max, states)
            if peeked is not None:
                peeked_batches.append(peeked)
                limit -= len(peeked.offsets)
                bytes_max -= sum(entry.size() for entry in peeked.entries)
        return peeked_batches

    async def purge(self, condition: Filter | None) -> int:
        """Finish what is pending, all or what matches, whoever has it; how many that was."""
        count, stored = 0, set()
        for delivery in self.deliveries.values():
            purged, durable = await delivery.purge(condition)
            count += purged
            stored.add(durable)
        await all_stored(stored)
        return count

    async def wait_for_dead_letters(self) -> None:
        """Wait until pending dead letters are stored, as far as they can be now."""
        for delivery in list(self.deliveries.values()):
            if delivery.view.dead_letter_pending:
                await delivery.wait_idle()


def _wake(waiter: _Waiter) -> bool:
    if waiter.woken.done():
        return False
    waiter.woken.set_result(None)
    return True
