"""The subscriptions of this node: made, found, brought up to date with the topics, kept in time.

A subscription is put to work when it is first used. Topics that appear join those whose pattern they
match, and those that go leave. Once a second what is due is done, also where nobody waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
import structlog
from pyroaring import BitMap64

from quiver.broker.catalog import Catalog, TopicRecord
from quiver.broker.dead_letters import DeadLetters
from quiver.broker.delivery.machine import DeliveryMachine
from quiver.broker.inbox import Inbox
from quiver.broker.lease_token import TokenSigner
from quiver.broker.partitions import Partitions
from quiver.broker.subscription import Subscription
from quiver.broker.subscription_catalog import (
    SubscriptionCatalog,
    SubscriptionRecord,
    covers,
)
from quiver.model.batch import StoredBatch
from quiver.model.clock import Clock
from quiver.model.ids import Microseconds, Offset
from quiver.model.subscription import SubscriptionSettings
from quiver.model.wire import SubscriptionInfo

logger = structlog.get_logger()


class Subscriptions:
    def __init__(
        self,
        catalog: SubscriptionCatalog,
        topics: Catalog,
        partitions: Partitions,
        *,
        clock: Clock,
        signer: TokenSigner,
        lease_ids: Iterator[int],
        dead_letters: DeadLetters,
    ) -> None:
        self._catalog = catalog
        self._topics = topics
        self._partitions = partitions
        self._clock = clock
        self._signer = signer
        self._lease_ids = lease_ids
        self._dead_letters = dead_letters
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
        is_queue: bool = False,
    ) -> SubscriptionRecord:
        """Make a subscription that begins at a place in each partition there is."""
        starts: dict[str, int] = {}
        for wanted in settings.topics:
            if "*" not in wanted:
                self._topics.get(wanted)
        for topic in self._covered(settings):
            for index in range(len(topic.first_hashes)):
                log = (await self._partitions.get(topic, index)).log
                place = log.start_offset
                if start_time is not None:
                    place = await log.offset_at(Microseconds(start_time))
                elif start == "latest":
                    place = log.next_offset
                starts[f"{topic.number}/{index}"] = place
        record = await self._catalog.create(name, settings, starts, is_queue=is_queue)
        logger.info("subscription created", subscription=name, topics=settings.topics)
        return record

    async def describe(self, record: SubscriptionRecord) -> SubscriptionInfo:
        subscription = await self.get(record.name)
        depth = subscription.depth
        return msgspec.structs.replace(
            subscription_info(record),
            ready=depth.ready,
            delayed=depth.delayed,
            leased=depth.leased,
            dead=depth.dead + depth.condemned,
            unseen=subscription.unseen,
        )

    def find(self, name: str) -> SubscriptionRecord:
        return self._catalog.get(name)

    def all(self) -> list[SubscriptionRecord]:
        return sorted(self._catalog.all(), key=lambda record: record.name)

    async def alter(self, name: str, changes: dict[str, Any]) -> SubscriptionRecord:
        record = await self._catalog.alter(name, changes)
        self._at_work.pop(name, None)
        return record

    async def delete(self, name: str) -> None:
        record = await self._catalog.delete(name)
        self._at_work.pop(name, None)
        for _, partition in self._partitions.opened():
            if partition.state is not None:
                partition.state.forget(record.number)
        logger.info("subscription deleted", subscription=name)

    async def get(self, name: str) -> Subscription:
        """The subscription at work, on all the partitions it covers now."""
        record = self._catalog.get(name)
        subscription = self._at_work.get(name)
        if subscription is not None and self._is_current(subscription):
            return subscription
        async with self._turn:
            subscription = self._at_work.get(name)
            if subscription is None or not self._is_current(subscription):
                subscription = await self._put_to_work(record, subscription)
            return subscription

    def _is_current(self, subscription: Subscription) -> bool:
        return subscription.topics_version == self._topics.version and all(
            inbox.is_open for inbox in subscription.inboxes.values()
        )

    async def _put_to_work(
        self, record: SubscriptionRecord, known: Subscription | None
    ) -> Subscription:
        subscription = known or Subscription(record, self._signer, self._clock)
        version = self._topics.version
        inboxes = {}
        for topic in self._covered(record.settings):
            for index in range(len(topic.first_hashes)):
                place = (topic.number, index)
                old = subscription.inboxes.get(place)
                inboxes[place] = (
                    old if old and old.is_open else await self._inbox(record, topic, index)
                )
        subscription.replace(inboxes, version)
        for inbox in inboxes.values():
            inbox.state.on_messages[record.number] = subscription.notify
        self._at_work[record.name] = subscription
        return subscription

    async def _inbox(self, record: SubscriptionRecord, topic: TopicRecord, index: int) -> Inbox:
        partition = await self._partitions.get(topic, index)
        state = await partition.open_state(self._blank_machines(topic, index), self._clock)
        return Inbox(
            subscription=record.number,
            topic=topic.name,
            topic_number=topic.number,
            partition=index,
            state=state,
            clock=self._clock,
            lease_ids=self._lease_ids,
            bury=partial(self._bury, record),
        )

    def _blank_machines(self, topic: TopicRecord, index: int) -> dict[int, DeliveryMachine]:
        """Every subscription of a partition, as it began."""
        return {
            record.number: DeliveryMachine(record.settings, record.start(topic, index))
            for record in self._catalog.on_topic(topic.name)
        }

    def _covered(self, settings: SubscriptionSettings) -> list[TopicRecord]:
        return [topic for topic in self._topics.topics() if covers(settings, topic.name)]

    # ------------------------------------------------------------------ keeping in time

    def tick(self) -> None:
        """Do what is due everywhere."""
        now = self._clock.time_us()
        for subscription in list(self._at_work.values()):
            for inbox in subscription.inboxes.values():
                event = inbox.machine.next_event() if inbox.is_open else None
                if event is not None and event <= now:
                    inbox.tick()

    async def floor(self, topic: TopicRecord, index: int) -> Offset | None:
        """The offset that every subscription of a partition has passed; ``None`` without any."""
        machines = self._blank_machines(topic, index)
        if not machines:
            return None
        state = await (await self._partitions.get(topic, index)).open_state(machines, self._clock)
        return min(state.machines[number].floor for number in machines)

    async def _bury(
        self, record: SubscriptionRecord, inbox: Inbox, entries: list[StoredBatch], dead: BitMap64
    ) -> None:
        await self._dead_letters.store(
            record.settings.dead_letter or f"{record.name}.dlq",
            subscription=record.name,
            topic=inbox.topic,
            partition=inbox.partition,
            machine=inbox.machine,
            entries=entries,
            offsets=dead,
        )


def subscription_info(record: SubscriptionRecord) -> SubscriptionInfo:
    return SubscriptionInfo(
        name=record.name,
        number=record.number,
        settings=record.settings,
        created_us=record.created_us,
        is_queue=record.is_queue,
    )
