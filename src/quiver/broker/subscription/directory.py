"""The subscriptions of this node: made, found, brought up to date with the topics, kept in time.

A subscription is put to work when it is first used. Topics that appear join those whose pattern they
match, and those that go leave. Once a second what is due is done, also where nobody waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec
import structlog
from pyroaring import BitMap64

from quiver.broker.delivery.lease_token import TokenSigner
from quiver.broker.delivery.machine.machine import DeliveryMachine
from quiver.broker.delivery.partition_delivery import PartitionDelivery
from quiver.broker.delivery.split_barrier import SplitBarrier
from quiver.broker.delivery.state_log import DeliveryStateLog
from quiver.broker.partition.partition import Partition
from quiver.broker.partition.partitions import Partitions
from quiver.broker.remote.partition_router import PartitionRouter
from quiver.broker.subscription.catalog import (
    SubscriptionCatalog,
    SubscriptionRecord,
    covers,
    dead_letter_topic,
)
from quiver.broker.subscription.dead_letters import DeadLetters
from quiver.broker.subscription.status import status_of
from quiver.broker.subscription.subscription import Subscription
from quiver.broker.topics.catalog import TopicCatalog, TopicRecord
from quiver.broker.topics.registry import changed_settings
from quiver.errors import NotLeader, OffsetOutOfRange, PartitionNotFound
from quiver.metrics.traffic import Traffic
from quiver.model.batch import StoredBatch
from quiver.model.clock import Clock
from quiver.model.filter import Filter
from quiver.model.ids import Microseconds, Offset
from quiver.model.layout import Split
from quiver.model.subscription import Guarantee, Ordering, SubscriptionSettings
from quiver.protocol import Status, SubscriptionInfo

logger = structlog.get_logger()


class SubscriptionDirectory:
    def __init__(
        self,
        catalog: SubscriptionCatalog,
        topics: TopicCatalog,
        partitions: Partitions,
        *,
        clock: Clock,
        signer: TokenSigner,
        lease_ids: Iterator[int],
        dead_letters: DeadLetters,
        router: PartitionRouter,
        traffic: Traffic | None = None,
    ) -> None:
        self._catalog = catalog
        self._topics = topics
        self._partitions = partitions
        self._clock = clock
        self._signer = signer
        self._lease_ids = lease_ids
        self._dead_letters = dead_letters
        self._router = router
        self._traffic = traffic or Traffic()
        self._at_work: dict[str, Subscription] = {}
        self._turn = asyncio.Lock()

    # ------------------------------------------------------------------ making and finding

    async def create(
        self,
        name: str,
        settings: SubscriptionSettings,
        *,
        start: str = "latest",
        start_time: int | None = None,
        start_offset: int | None = None,
        is_queue: bool = False,
    ) -> SubscriptionRecord:
        """Make a subscription that begins at a place in each partition there is."""
        self._require_topics(settings)
        starts: dict[str, int] = {}
        if start == "latest" or start_time is not None or start_offset is not None:
            starts = await self._starts(name, settings, start_time, start_offset)
        record = await self._catalog.create(name, settings, starts, is_queue=is_queue)
        logger.info("subscription created", subscription=name, topics=settings.topics)
        return record

    async def _starts(
        self,
        name: str,
        settings: SubscriptionSettings,
        start_time: int | None,
        start_offset: int | None,
    ) -> dict[str, int]:
        """The end of each partition, or the first message at or after a time, or an offset."""
        starts: dict[str, int] = {}
        for topic in self._covered(name, settings):
            for index in range(len(topic.first_hashes)):
                first, end, place = await self._router.start(topic, index, start_time, start_offset)
                if start_offset is not None:
                    place = _within(first, start_offset, end)
                starts[f"{topic.number}/{index}"] = place
        return starts

    async def describe(self, record: SubscriptionRecord) -> SubscriptionInfo:
        subscription = await self.get(record.name)
        if subscription.version is None:
            raise NotLeader(
                f"partitions of {record.name!r} are opening, so their depth is unknown; try again"
            )
        depth = subscription.depth
        return msgspec.structs.replace(
            subscription_info(record),
            ready=depth.ready,
            delayed=depth.delayed,
            leased=depth.leased,
            dead=depth.dead + depth.dead_letter_pending,
            unseen=subscription.unseen,
            consumers=subscription.consumers,
            members=None if subscription.membership is None else subscription.membership.members,
        )

    def find(self, name: str) -> SubscriptionRecord:
        return self._catalog.get(name)

    def holds(self, name: str) -> bool:
        return any(record.name == name for record in self._catalog.all())

    def has_dead_letters(self, name: str) -> bool:
        """Whether this is the queue for the dead letters of others."""
        return any(
            dead_letter_topic(record.name, record.settings) == name
            for record in self._catalog.all()
        )

    def all(self) -> list[SubscriptionRecord]:
        return sorted(self._catalog.all(), key=lambda record: record.name)

    async def alter(self, name: str, changes: dict[str, Any]) -> SubscriptionRecord:
        if "topics" in changes:
            self._require_topics(changed_settings(self._catalog.get(name).settings, changes))
        async with self._turn:
            record = await self._catalog.alter(name, changes)
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
            self.forget(await self._catalog.delete(name))
        logger.info("subscription deleted", subscription=name)

    def forget(self, record: SubscriptionRecord) -> None:
        """It is there no more."""
        self._traffic.subscriptions.forget(record.name)
        for state in self._states():
            state.forget(record.number)
        subscription = self._at_work.pop(record.name, None)
        if subscription is not None:
            subscription.notify_all()

    def _states(self) -> list[DeliveryStateLog]:
        states = [partition.state for _, partition in self._partitions.opened()]
        return [state for state in states if state is not None]

    async def get(self, name: str) -> Subscription:
        """The subscription at work, on all the partitions it covers now."""
        self._catalog.get(name)
        subscription = self._at_work.get(name)
        if subscription is not None and self._is_current(subscription):
            return subscription
        async with self._turn:
            record = self._catalog.get(name)
            subscription = self._at_work.get(name)
            if subscription is None or not self._is_current(subscription):
                subscription = await self._put_to_work(record, subscription)
            return subscription

    def _is_current(self, subscription: Subscription) -> bool:
        return subscription.version == self._version and subscription.is_open

    @property
    def _version(self) -> tuple[int, int]:
        """Changes whenever a subscription may have other partitions here than before."""
        return self._topics.version, self._partitions.storage.version

    async def _put_to_work(
        self, record: SubscriptionRecord, known: Subscription | None
    ) -> Subscription:
        subscription = known or Subscription(
            record,
            self._signer,
            self._clock,
            self._traffic.subscriptions.of(record.name),
            partial(self._release_remote, record.name),
            partial(self._reads, record.name),
        )
        version: tuple[int, int] | None = self._version
        deliveries = {}
        topics = {one.number: one for one in self._covered(record.name, record.settings)}
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
        subscription.replace(deliveries, version, self._places(record))
        for delivery in deliveries.values():
            self._hold_back(subscription, delivery, topics[delivery.topic_number])
            delivery.state.on_messages[record.number] = subscription.notify
            delivery.bury()
        self._at_work[record.name] = subscription
        return subscription

    async def _delivery(
        self,
        record: SubscriptionRecord,
        topic: TopicRecord,
        index: int,
        partition: Partition,
        old: PartitionDelivery | None,
    ) -> PartitionDelivery:
        state = await self._state(topic, index, partition)
        if old is not None and old.state is state:
            return old
        return PartitionDelivery(
            subscription=record.number,
            topic=topic.name,
            topic_number=topic.number,
            partition=index,
            state=state,
            clock=self._clock,
            lease_ids=self._lease_ids,
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
        may_lack = self._partitions.storage.may_lack(topic)
        return parent.has_passed(split.offset, may_lack=may_lack)

    async def _ask_passed(self, name: str, topic: TopicRecord, split: Split) -> bool:
        passed = await self._router.has_passed(name, topic, split)
        if passed is None:
            return await self.has_passed(name, topic.name, split.parent, split.offset)
        return passed

    async def has_passed(self, name: str, topic: str, index: int, offset: Offset) -> bool:
        """Whether a subscription is done with everything before an offset of a partition here."""
        subscription = await self.get(name)
        delivery = subscription.deliveries.get((self._topics.get(topic).number, index))
        if delivery is None or not delivery.is_open:
            raise NotLeader(f"this node is not the leader of partition {index} of {topic!r}")
        await delivery.state.catch_up(delivery.machine, 1)
        may_lack = self._partitions.storage.may_lack(self._topics.get(topic))
        return delivery.is_open and delivery.has_passed(offset, may_lack=may_lack)

    async def _state(
        self, topic: TopicRecord, index: int, partition: Partition
    ) -> DeliveryStateLog:
        return await partition.open_state(self._blank_machines(topic, index))

    async def prepare(self, topic: TopicRecord, index: int, partition: Partition) -> None:
        """Recover the state of a partition before anything new is published to it.

        A crash may have lost messages that the state log speaks of; their offsets go to others.
        """
        if self._catalog.on_topic(topic.name):
            await self._state(topic, index, partition)

    def _blank_machines(self, topic: TopicRecord, index: int) -> dict[int, DeliveryMachine]:
        """Every subscription of a partition, as it began."""
        return {
            record.number: DeliveryMachine(record.settings, record.start(topic, index), record.name)
            for record in self._catalog.on_topic(topic.name)
        }

    def _require_topics(self, settings: SubscriptionSettings) -> None:
        for wanted in settings.topics:
            if "*" not in wanted:
                self._topics.get(wanted)

    def _covered(self, name: str, settings: SubscriptionSettings) -> list[TopicRecord]:
        return [topic for topic in self._topics.topics() if covers(name, settings, topic.name)]

    # ------------------------------------------------------------------ who serves what

    def is_group(self, name: str) -> bool:
        return self._catalog.get(name).settings.ordering is Ordering.PARTITION

    def is_to_be_settled(self, name: str) -> bool:
        """Whether consumers hold what they get until they settle it."""
        return self._catalog.get(name).settings.guarantee is not Guarantee.AT_MOST_ONCE

    def _leaders(self, name: str) -> dict[tuple[str, int], str | None]:
        """Of each partition, the address of the node that leads it; ``None``: this one.

        Partitions that nobody leads are left out.
        """
        storage, settings = self._partitions.storage, self._catalog.get(name).settings
        leaders: dict[tuple[str, int], str | None] = {}
        for topic in self._covered(name, settings):
            for index in range(len(topic.first_hashes)):
                if storage.leads(topic, index):
                    leaders[topic.name, index] = None
                elif (address := storage.leader(topic, index)) is not None:
                    leaders[topic.name, index] = address
        return leaders

    def _reads(self, name: str, number: int, index: int) -> bool:
        topic = self._topics.numbered(number)
        return (
            topic is not None
            and index < len(topic.first_hashes)
            and covers(name, self._catalog.get(name).settings, topic.name)
        )

    def require_led(self, name: str) -> None:
        """``NotLeader`` if nobody leads one of its partitions: what concerns all must wait for it."""
        missing = self._places(self._catalog.get(name)) - self._leaders(name).keys()
        if missing:
            topic, index = min(missing)
            raise NotLeader(f"partition {index} of {topic!r} has no leader now")

    def leaders(self, name: str) -> list[str | None]:
        """The nodes that lead partitions of a subscription, each once; ``None``: this one."""
        return list(dict.fromkeys(self._leaders(name).values()))

    def by_leader(self, name: str, partitions: list[str]) -> dict[str | None, list[str] | None]:
        """Which of these partitions each node leads."""
        leaders = {
            f"{topic}/{index}": leader for (topic, index), leader in self._leaders(name).items()
        }
        found: dict[str | None, list[str] | None] = {}
        for partition in partitions:
            if partition in leaders:
                group = found.setdefault(leaders[partition], [])
                assert group is not None
                group.append(partition)
        return found

    def coordinator(self, name: str) -> str | None:
        """The node that decides who reads what: it leads the first partition; ``None``: this one."""
        topics = sorted(
            self._covered(name, self._catalog.get(name).settings), key=lambda topic: topic.number
        )
        storage = self._partitions.storage
        if not topics or storage.leads(topics[0], 0):
            return None
        address = storage.leader(topics[0], 0)
        if address is None:
            raise NotLeader(f"partition 0 of {topics[0].name!r} has no leader now")
        return address

    def coordinates(self, name: str) -> bool:
        """Whether this node does what one node alone is to do for a subscription."""
        try:
            return self.holds(name) and self.coordinator(name) is None
        except NotLeader:
            return False

    def leader_of_lease(self, lease: bytes) -> str | None:
        """The node that a lease can be settled with; ``None``: this one."""
        token = self._signer.verify(lease)
        topic = self._topics.numbered(token.topic)
        if topic is None or self._partitions.storage.leads(topic, token.partition):
            return None
        address = self._partitions.storage.leader(topic, token.partition)
        if address is None:
            raise NotLeader(f"partition {token.partition} of {topic.name!r} has no leader now")
        return address

    def named_in(self, lease: bytes) -> str:
        """The subscription that a lease is of."""
        number = self._signer.verify(lease).subscription
        return next(record.name for record in self._catalog.all() if record.number == number)

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
        subscription = await self.get(name)
        places: dict[tuple[int, int], Offset] = {}
        for place, delivery in subscription.deliveries.items():
            log = delivery.state.data
            if offset is not None or offsets is not None:
                goal = (offsets or {}).get((delivery.topic, delivery.partition), offset)
                if goal is not None:
                    places[place] = _within(log.start_offset, goal, log.next_offset)
            elif time_us is not None:
                places[place] = await log.offset_at(Microseconds(time_us))
            else:
                places[place] = log.start_offset if at == "earliest" else log.next_offset
        unknown = set(offsets or ()) - self._places(subscription.record)
        if unknown:
            topic, partition = min(unknown)
            raise PartitionNotFound(
                f"{name!r} does not read partition {partition:,} of {topic[:200]!r}"
            )
        await subscription.seek(places)
        logger.info("subscription sought", subscription=name, partitions=len(places))

    def _places(self, record: SubscriptionRecord) -> set[tuple[str, int]]:
        """Every partition that the subscription reads, wherever it is."""
        return {
            (topic.name, index)
            for topic in self._covered(record.name, record.settings)
            for index in range(len(topic.first_hashes))
        }

    async def purge(self, name: str, condition: Filter | None) -> int:
        count = await (await self.get(name)).purge(condition)
        logger.info("subscription purged", subscription=name, messages=count)
        return count

    async def cancel(self, topic: TopicRecord, index: int, offsets: BitMap64) -> BitMap64:
        """Let messages that wait for their time never be delivered; which of them that was."""
        cancelled = BitMap64()
        for record in self._catalog.on_topic(topic.name):
            delivery = (await self.get(record.name)).deliveries.get((topic.number, index))
            if delivery is not None:
                of_this, stored = await delivery.cancel(offsets)
                cancelled |= of_this
                if stored is not None:
                    await asyncio.shield(stored)
        return cancelled

    async def statuses(self, topic: TopicRecord, index: int, offset: Offset) -> list[Status]:
        """Where a message stands with each subscription of its topic."""
        found = []
        for record in self._catalog.on_topic(topic.name):
            delivery = (await self.get(record.name)).deliveries.get((topic.number, index))
            if delivery is not None:
                found.append(status_of(record.name, delivery.view, offset))
        return found

    # ------------------------------------------------------------------ keeping in time

    def tick(self) -> None:
        """Do what is due everywhere."""
        for subscription in self._at_work.values():
            subscription.tick()
            if not self._is_current(subscription):
                subscription.notify()

    def _release_remote(self, name: str, consumer: str) -> None:
        """A member of a group is gone: what it holds on other nodes is ready again, too."""
        others = [address for address in self.leaders(name) if address is not None]
        self._router.release(others, name, consumer)

    def look_again(self) -> None:
        """This node serves something that it did not serve before: whoever waits may want it."""
        for subscription in self._at_work.values():
            if not self._is_current(subscription):
                subscription.notify_all()

    async def close(self) -> None:
        """Finish what is under way."""
        for subscription in list(self._at_work.values()):
            for delivery in subscription.deliveries.values():
                await delivery.close()

    async def floor(self, topic: TopicRecord, index: int) -> Offset | None:
        """The offset that every subscription of a partition has passed; ``None`` without any."""
        records = self._catalog.on_topic(topic.name)
        if not records:
            return None
        state = await self._state(topic, index, await self._partitions.get(topic, index))
        return min(state.machines[record.number].view.floor for record in records)

    async def pass_over_lost(self, topic: TopicRecord, index: int) -> int:
        """Let subscriptions go on where the log begins now; how many messages they never read."""
        records = self._catalog.on_topic(topic.name)
        if not records:
            return 0
        state = await self._state(topic, index, await self._partitions.get(topic, index))
        lost = 0
        for record in records:
            of_this = state.pass_over_lost(record.number)
            if of_this:
                logger.warning(
                    "retention removed messages that were not read",
                    topic=topic.name,
                    partition=index,
                    subscription=record.name,
                    messages=of_this,
                )
            lost += of_this
        return lost

    async def _bury(
        self, name: str, delivery: PartitionDelivery, entries: list[StoredBatch], dead: BitMap64
    ) -> None:
        await self._dead_letters.store(
            dead_letter_topic(name, self._catalog.get(name).settings),
            subscription=name,
            topic=self._topics.get(delivery.topic),
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


def _of(subscription: Subscription) -> Iterable[PartitionDelivery]:
    return subscription.deliveries.values()


def _within(first: Offset, offset: int, end: Offset) -> Offset:
    if not first <= offset <= end:
        raise OffsetOutOfRange(
            f"offset {offset:,} is not between {first:,} and {end:,}",
            first_offset=first,
            next_offset=end,
        )
    return Offset(offset)


def subscription_info(record: SubscriptionRecord) -> SubscriptionInfo:
    return SubscriptionInfo(
        name=record.name,
        number=record.number,
        settings=record.settings,
        created_us=record.created_us,
        is_queue=record.is_queue,
    )
