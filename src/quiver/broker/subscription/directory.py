"""The subscriptions that are active on this node.

A subscription is opened when it is first used. It follows the topics: new ones that match its pattern
join, deleted ones leave. A tick once a second handles what is due, also where no consumer waits. Those
where nothing is due, and that nobody uses, are looked at less often.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

import structlog
from pyroaring import BitMap64

from quiver.aio import SingleFlight, TaskSet
from quiver.broker.delivery.lease_token import LeaseIssuer
from quiver.broker.delivery.machine.machine import DeliveryMachine
from quiver.broker.delivery.partition_delivery import PartitionDelivery
from quiver.broker.delivery.split_barrier import SplitBarrier
from quiver.broker.delivery.state_log import DeliveryStateLog
from quiver.broker.partition.partition import Partition
from quiver.broker.partition.partitions import Partitions
from quiver.broker.remote.partition_router import PartitionRouter
from quiver.broker.subscription.catalog import (
    SubscriptionRecord,
    dead_letter_topic,
)
from quiver.broker.subscription.copied_partition import CopiedPartition
from quiver.broker.subscription.dead_letters import DeadLetters
from quiver.broker.subscription.leaders import SubscriptionLeaders
from quiver.broker.subscription.status import status_of
from quiver.broker.subscription.subscription import Subscription
from quiver.broker.topics.catalog import TopicRecord
from quiver.errors import (
    NotLeader,
    OffsetOutOfRange,
    PartitionNotFound,
    QuiverError,
    SubscriptionNotFound,
)
from quiver.metrics.traffic import Traffic
from quiver.model.batch import StoredBatch
from quiver.model.clock import Clock
from quiver.model.filter import Filter
from quiver.model.ids import Microseconds, Offset
from quiver.model.layout import Split
from quiver.model.message_id import MessageId
from quiver.model.subscription import Ordering
from quiver.protocol import Status

_GRACE_US = 2_000_000
"""How long consumers may take to come back to a partition that is served anew."""

_LOOK_TICKS = 10
"""Every so many ticks, subscriptions that rest are looked at too."""

logger = structlog.get_logger()


class SubscriptionDirectory:
    """The subscriptions that are at work on this node."""

    def __init__(
        self,
        leaders: SubscriptionLeaders,
        partitions: Partitions,
        router: PartitionRouter,
        leases: LeaseIssuer,
        dead_letters: DeadLetters,
        *,
        clock: Clock,
        traffic: Traffic,
    ) -> None:
        self._leaders = leaders
        self._partitions = partitions
        self._router = router
        self._leases = leases
        self._dead_letters = dead_letters
        self._clock = clock
        self._traffic = traffic
        self._at_work: dict[str, Subscription] = {}
        self._ticks = 0
        self._turn = asyncio.Lock()
        self._refreshing: set[str] = set()
        self._tasks = TaskSet()
        self._opening: SingleFlight[str, Subscription] = SingleFlight()

    # ------------------------------------------------------------------ definitions

    async def alter(self, name: str, changes: dict[str, Any]) -> SubscriptionRecord:
        async with self._turn:
            record = await self._leaders.catalog.alter(name, changes)
            self.altered(record)
        logger.info("subscription altered", subscription=name, changes=sorted(changes))
        return record

    def altered(self, record: SubscriptionRecord) -> None:
        """It has other settings from now on."""
        for state in self._states():
            state.reconfigure(record.number, record.settings)
        subscription = self._at_work.get(record.name)
        if subscription is not None:
            subscription.alter(record)

    async def delete(self, name: str) -> None:
        async with self._turn:
            self.forget(await self._leaders.catalog.delete(name))
        logger.info("subscription deleted", subscription=name)

    def forget(self, record: SubscriptionRecord) -> None:
        """It is there no more."""
        self._traffic.subscriptions.forget(record.name)
        for state in self._states():
            state.forget(record.number)
        subscription = self._at_work.pop(record.name, None)
        if subscription is not None:
            subscription.sessions.end_all(SubscriptionNotFound(f"{record.name!r} was deleted"))
            subscription.notify_all()

    def _states(self) -> list[DeliveryStateLog]:
        states = [partition.state for _, partition in self._partitions.opened()]
        return [state for state in states if state is not None]

    async def get(self, name: str) -> Subscription:
        """The subscription at work, on all the partitions it covers now."""
        self._leaders.catalog.get(name)
        subscription = self._at_work.get(name)
        if subscription is not None and self._is_current(subscription):
            subscription.is_resting = False
            return subscription
        async with self._turn:
            record = self._leaders.catalog.get(name)
            subscription = self._at_work.get(name)
            if subscription is None or not self._is_current(subscription):
                subscription = await self._put_to_work(record, subscription)
            return subscription

    async def get_within(self, name: str, seconds: float) -> Subscription:
        """The same, or ``TimeoutError`` if it takes longer. It is opened all the same."""
        subscription = self._at_work.get(name)
        if subscription is not None and self._is_current(subscription):
            subscription.is_resting = False
            return subscription
        return await asyncio.wait_for(self._opening.run(name, partial(self.get, name)), seconds)

    def is_unused(self, record: SubscriptionRecord) -> bool:
        """Whether a subscription is known to have no messages, as nobody ever used its partitions."""
        if record.name in self._at_work:
            return False
        places = [
            self._partitions.is_unused(topic, index)
            for topic in self._leaders.covered(record.name, record.settings)
            for index in range(len(topic.first_hashes))
        ]
        return bool(places) and all(places)

    def _is_current(self, subscription: Subscription) -> bool:
        return subscription.version == self._version and subscription.is_open

    @property
    def _version(self) -> tuple[int, int]:
        """Changes whenever a subscription may have other partitions here than before."""
        return self._leaders.topics.version, self._leaders.placement.version

    async def _put_to_work(
        self, record: SubscriptionRecord, known: Subscription | None
    ) -> Subscription:
        subscription = known or Subscription(
            record,
            self._leases.signer,
            self._clock,
            self._traffic.subscriptions.of(record.name),
            partial(self._release_remote, record.name),
            partial(self._leaders.delivers, record.name),
        )
        version: tuple[int, int] | None = self._version
        deliveries = {}
        covered = self._leaders.covered(record.name, record.settings)
        topics = {one.number: one for one in covered if record.delivers(one)}
        for topic in topics.values():
            for index in self._partitions.led(topic):
                place = (topic.number, index)
                try:
                    partition = await self._partitions.get(topic, index)
                    deliveries[place] = await self._delivery(
                        record, topic, index, partition, subscription.deliveries.get(place)
                    )
                except NotLeader:
                    version = None  # perhaps it can only not prove it now: it is tried again
        try:
            copied = await self._copied(record, covered)
        except NotLeader:
            copied, version = [], None
        for delivery in deliveries.values():
            self._hold_back(subscription, delivery, topics[delivery.topic_number])
        for place, delivery in deliveries.items():
            if subscription.deliveries.get(place) is not delivery:
                # Only now can its sessions come back.
                delivery.sessions.cut(_GRACE_US, may_shorten=not record.settings.trusts_silence)
        subscription.is_resting = False
        subscription.replace(deliveries, version, self._leaders.places(record), copied)
        for delivery in deliveries.values():
            delivery.state.on_messages[record.number] = subscription.notify
            delivery.bury()
        self._at_work[record.name] = subscription
        return subscription

    async def _copied(
        self, record: SubscriptionRecord, covered: list[TopicRecord]
    ) -> list[CopiedPartition]:
        """What this node leads of the partitions that another cluster delivers from."""
        found = []
        for topic in filter(record.copies, covered):
            for index in self._partitions.led(topic):
                partition = await self._partitions.get(topic, index)
                state = await self.state(topic, index, partition)
                found.append(CopiedPartition(topic.name, index, state, record.number))
        return found

    async def _delivery(
        self,
        record: SubscriptionRecord,
        topic: TopicRecord,
        index: int,
        partition: Partition,
        old: PartitionDelivery | None,
    ) -> PartitionDelivery:
        state = await self.state(topic, index, partition)
        machine = state.machines.get(record.number)  # a mirror may have put another in its place
        if old is not None and old.state is state and old.machine is machine:
            old.is_restoring = topic.is_restoring
            return old
        return PartitionDelivery(
            subscription=record.number,
            topic=topic,
            partition=index,
            state=state,
            clock=self._clock,
            lease_ids=self._leases.ids,
            bury=partial(self._bury, record.name),
            counts=self._traffic.subscriptions.of(record.name),
        )

    def _hold_back(
        self, subscription: Subscription, delivery: PartitionDelivery, topic: TopicRecord
    ) -> None:
        """Where order matters, a partition that was split off comes after what was before it."""
        if delivery.barrier is not None or subscription.record.settings.ordering is Ordering.NONE:
            return
        split = topic.origin_of(delivery.partition)
        if split is not None:
            delivery.barrier = SplitBarrier(
                partial(self._look_passed, subscription, topic, split),
                partial(self._ask_passed, subscription.record.name, topic, split),
                subscription.notify_all,
                self._clock,
            )

    def _look_passed(
        self, subscription: Subscription, topic: TopicRecord, split: Split
    ) -> bool | None:
        """Whether it is done with the parent's part; ``None`` if the parent is not served here."""
        parent = subscription.deliveries.get((topic.number, split.parent))
        if parent is None or not parent.is_open:
            return None
        may_lack = self._leaders.placement.may_lack(topic)
        return parent.has_passed(split.offset, may_lack=may_lack)

    async def _ask_passed(self, name: str, topic: TopicRecord, split: Split) -> bool:
        passed = await self._router.has_passed(name, topic, split)
        if passed is None:
            return await self.has_passed(name, topic.name, split.parent, split.offset)
        return passed

    async def has_passed(self, name: str, topic: str, index: int, offset: Offset) -> bool:
        """Whether a subscription is done with everything before an offset of a partition here."""
        subscription = await self.get(name)
        delivery = subscription.deliveries.get((self._leaders.topics.get(topic).number, index))
        if delivery is None or not delivery.is_open:
            raise NotLeader(f"this node is not the leader of partition {index} of {topic!r}")
        await delivery.state.catch_up(delivery.machine, 1)
        may_lack = self._leaders.placement.may_lack(self._leaders.topics.get(topic))
        return delivery.is_open and delivery.has_passed(offset, may_lack=may_lack)

    async def state(self, topic: TopicRecord, index: int, partition: Partition) -> DeliveryStateLog:
        """The delivery state of a partition, with all its subscriptions."""
        return await partition.open_state(self._blank_machines(topic, index))

    async def prepare(self, topic: TopicRecord, index: int, partition: Partition) -> None:
        """Recover the state of a partition before anything new is published to it.

        A crash may have lost messages that the state log speaks of; their offsets go to others.
        """
        if self._leaders.catalog.on_topic(topic.name):
            await self.state(topic, index, partition)

    def _blank_machines(self, topic: TopicRecord, index: int) -> dict[int, DeliveryMachine]:
        """Every subscription of a partition, as it began."""
        return {
            record.number: DeliveryMachine(record.settings, record.start(topic, index), record.name)
            for record in self._leaders.catalog.on_topic(topic.name)
        }

    # ------------------------------------------------------------------ replay and clearing up

    async def seek(
        self,
        name: str,
        *,
        at: str | None = None,
        time_us: int | None = None,
        offset: int | None = None,
        offsets: Mapping[tuple[str, int], int] | None = None,
    ) -> None:
        """Begin again at the start, the end, a time, an offset, or offsets of some partitions."""
        self._leaders.require_delivering(name)
        subscription = await self.get(name)
        places: dict[tuple[int, int], Offset] = {}
        for place, delivery in subscription.deliveries.items():
            log = delivery.state.data
            if offset is not None or offsets is not None:
                goal = (offsets or {}).get((delivery.topic, delivery.partition), offset)
                if goal is not None:
                    places[place] = offset_within(log.start_offset, goal, log.next_offset)
            elif time_us is not None:
                places[place] = await log.offset_at(Microseconds(time_us))
            else:
                places[place] = log.start_offset if at == "earliest" else log.next_offset
        unknown = set(offsets or ()) - self._leaders.places(subscription.record)
        if unknown:
            topic, partition = min(unknown)
            raise PartitionNotFound(
                f"{name!r} does not read partition {partition:,} of {topic[:200]!r}"
            )
        await subscription.seek(places)
        logger.info("subscription sought", subscription=name, partitions=len(places))

    async def restore(
        self,
        name: str,
        topic: TopicRecord,
        index: int,
        *,
        pending: BitMap64,
        end: int,
        deliveries: Mapping[int, BitMap64],
    ) -> None:
        """Let a subscription stand in a partition as a backup has it."""
        delivery = (await self.get(name)).deliveries.get((topic.number, index))
        if delivery is None or not delivery.is_open:
            raise NotLeader(f"partition {index} of {topic.name!r} is opening")
        stored = await delivery.restore(pending, Offset(end), deliveries)
        if stored is not None:
            await asyncio.shield(stored)

    async def purge(self, name: str, condition: Filter | None) -> int:
        self._leaders.require_delivering(name)
        count = await (await self.get(name)).purge(condition)
        logger.info("subscription purged", subscription=name, messages=count)
        return count

    async def cancel(self, topic: TopicRecord, index: int, offsets: BitMap64) -> BitMap64:
        """Let messages that wait for their time never be delivered; which of them that was."""
        cancelled = BitMap64()
        for record in self._leaders.catalog.on_topic(topic.name):
            delivery = (await self.get(record.name)).deliveries.get((topic.number, index))
            if delivery is not None:
                of_this, stored = await delivery.cancel(offsets)
                cancelled |= of_this
                if stored is not None:
                    await asyncio.shield(stored)
        return cancelled

    async def statuses(
        self, topic: TopicRecord, one: MessageId, entry: StoredBatch | None
    ) -> list[Status]:
        """Where a message stands with each subscription of its topic; its entry if it is there."""
        found = []
        for record in self._leaders.catalog.on_topic(topic.name):
            place = (topic.number, one.partition)
            delivery = (await self.get(record.name)).deliveries.get(place)
            if delivery is not None:
                start = record.start(topic, one.partition)
                found.append(
                    await status_of(
                        record.name, delivery, one.offset, one.append_time, start=start, entry=entry
                    )
                )
        return found

    # ------------------------------------------------------------------ keeping in time

    def tick(self) -> None:
        """Do what is due everywhere."""
        self._ticks += 1
        for subscription in self._at_work.values():
            if subscription.is_resting and self._ticks % _LOOK_TICKS:
                continue
            subscription.tick()
            if not self._is_current(subscription):
                self._refresh(subscription)
                subscription.notify()

    def _release_remote(self, name: str, consumer: str) -> None:
        """A member of a group is gone: what it holds on other nodes is ready again, too."""
        others = [address for address in self._leaders.leaders(name) if address is not None]
        self._router.release(others, name, consumer)

    def look_again(self) -> None:
        """This node serves something that it did not serve before: whoever waits may want it."""
        for subscription in self._at_work.values():
            if not self._is_current(subscription):
                self._refresh(subscription)
                subscription.notify_all()

    def _refresh(self, subscription: Subscription) -> None:
        """Bring a subscription up to date whose consumers ask for nothing: they are pushed to."""
        name = subscription.record.name
        if subscription.sessions and name not in self._refreshing:
            self._refreshing.add(name)
            self._tasks.start(self._bring_up_to_date(name))

    async def _bring_up_to_date(self, name: str) -> None:
        try:
            (await self.get(name)).sessions.push()
        except QuiverError as error:
            logger.info("subscription is not served yet", subscription=name, code=error.code)
        finally:
            self._refreshing.discard(name)

    async def close(self) -> None:
        """Finish what is under way."""
        await self._tasks.cancel()
        await self._opening.cancel()
        for subscription in list(self._at_work.values()):
            for delivery in subscription.deliveries.values():
                await delivery.close()

    async def deliveries(self, topic: TopicRecord, index: int) -> dict[str, PartitionDelivery]:
        """The deliveries of a partition that this node leads, by the subscription's name."""
        found = {}
        for record in self._leaders.catalog.on_topic(topic.name):
            delivery = (await self.get(record.name)).deliveries.get((topic.number, index))
            if delivery is None or not delivery.is_open:
                raise NotLeader(f"partition {index} of {topic.name!r} is opening")
            found[record.name] = delivery
        return found

    async def _bury(
        self, name: str, delivery: PartitionDelivery, entries: list[StoredBatch], dead: BitMap64
    ) -> None:
        await self._dead_letters.store(
            dead_letter_topic(name, self._leaders.catalog.get(name).settings),
            subscription=name,
            topic=self._leaders.topics.get(delivery.topic),
            partition=delivery.partition,
            view=delivery.view,
            entries=entries,
            offsets=dead,
        )
        logger.warning(
            "messages are dead letters now",
            subscription=name,
            topic=delivery.topic,
            partition=delivery.partition,
            messages=len(dead),
            error=delivery.view.last_error(Offset(dead.min())) if dead else "",
        )


def offset_within(first: Offset, offset: int, end: Offset) -> Offset:
    """The offset, if the log has or will have it; else ``OffsetOutOfRange``."""
    if not first <= offset <= end:
        raise OffsetOutOfRange(
            f"offset {offset:,} is not between {first:,} and {end:,}",
            first_offset=first,
            next_offset=end,
        )
    return Offset(offset)
