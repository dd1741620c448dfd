"""What the subscriptions of a partition have not finished: retention asks here before it deletes."""

from __future__ import annotations

import asyncio
from collections import Counter

import structlog

from quiver.broker.delivery.partition_delivery import PartitionDelivery
from quiver.broker.delivery.state_log import DeliveryStateLog
from quiver.broker.partition.partitions import Partitions
from quiver.broker.subscription.catalog import SubscriptionCatalog, dead_letter_topic
from quiver.broker.subscription.directory import SubscriptionDirectory
from quiver.broker.topics.catalog import TopicRecord
from quiver.errors import NotEnoughReplicas
from quiver.log.log import LogReader
from quiver.model.envelope import is_hidden
from quiver.model.ids import Microseconds, Offset

_READ_BYTES = 1 << 20
_WAIT_S = 5.0
"""How long records of the delivery state may take to be durable."""

logger = structlog.get_logger()


class Unfinished:
    def __init__(
        self,
        catalog: SubscriptionCatalog,
        directory: SubscriptionDirectory,
        partitions: Partitions,
    ) -> None:
        self._catalog = catalog
        self._directory = directory
        self._partitions = partitions
        self.lost: Counter[str] = Counter()
        """Messages that retention deleted, by the subscription that had not finished them."""
        self._version = -1
        self._queues: set[str] = set()
        """Topics that are queues, or have dead letters."""

    def keeps(self, topic: TopicRecord) -> bool:
        """Whether messages of a topic stay until every subscription has finished them."""
        if self._version != self._catalog.registry.version:
            self._version = self._catalog.registry.version
            records = self._catalog.all()
            self._queues = {one.name for one in records if one.is_queue}
            self._queues |= {dead_letter_topic(one.name, one.settings) for one in records}
        return topic.settings.retention.keeps_unread(is_queue=topic.name in self._queues)

    async def first(self, topic: TopicRecord, index: int, end: Offset) -> Offset | None:
        """The first message before ``end`` that a subscription has not finished, else ``end``.

        ``None`` if there are no subscriptions.
        """
        deliveries = await self._directory.deliveries(topic, index)
        firsts = [await _first(delivery, end) for delivery in deliveries.values()]
        return min(firsts, default=None)

    async def first_for_good(self, topic: TopicRecord, index: int, end: Offset) -> Offset | None:
        """The same, whatever happens next: a change of leader brings none before it back."""
        first = await self.first(topic, index, end)
        for delivery in (await self._directory.deliveries(topic, index)).values():
            await _durable(delivery.state)
        return first

    async def first_scheduled(
        self, topic: TopicRecord, index: int, end: Offset, time: Microseconds
    ) -> Offset | None:
        """The first unfinished message before ``end`` that is scheduled for later than ``time``."""
        firsts = []
        for delivery in (await self._directory.deliveries(topic, index)).values():
            await delivery.state.catch_up_to(delivery.machine, end)
            firsts.append(delivery.machine.state.scheduled_after(time))
        return min((first for first in firsts if first is not None), default=None)

    async def has_before(self, topic: TopicRecord, index: int, time: Microseconds) -> bool:
        """Whether an unfinished message was published, or due if it was scheduled, before a time."""
        for delivery in (await self._directory.deliveries(topic, index)).values():
            delivery.machine.state.scheduled_after(time)
            oldest = delivery.view.oldest_unscheduled_time
            if oldest is None:
                oldest = await _first_time(delivery.state.data, delivery.view.observed_to)
            if oldest is not None and oldest < time:
                return True
        return False

    async def pass_over_lost(self, topic: TopicRecord, index: int, start: Offset) -> int:
        """Let subscriptions go on at ``start``; how many messages they never read.

        That they are lost is durable on return, so they may be deleted.
        """
        records = self._catalog.on_topic(topic.name)
        if not records:
            return 0
        partition = await self._partitions.get(topic, index)
        state = await self._directory.state(topic, index, partition)
        lost = {}
        for record in records:
            state.pass_over_lost(record.number, start)
            lost[record.name] = state.take_lost(record.number)
        if any(lost.values()):
            await _durable(state)
        for name, count in lost.items():
            if count:
                logger.warning(
                    "retention removed messages that were not read",
                    topic=topic.name,
                    partition=index,
                    subscription=name,
                    messages=count,
                )
                self.lost[name] += count
        return sum(lost.values())


async def _durable(state: DeliveryStateLog) -> None:
    """Return when everything that the state says is on enough replicas."""
    underway = state.underway()
    if underway is not None and not (await asyncio.wait([underway], timeout=_WAIT_S))[0]:
        raise NotEnoughReplicas("the delivery state is not on enough replicas yet")
    if underway is not None:
        underway.result()


async def _first(delivery: PartitionDelivery, end: Offset) -> Offset:
    """Looks at messages that were not looked at as long as all before them are finished."""
    while True:
        delivery.tick()  # what has expired is finished
        first, observed_to = delivery.view.floor, delivery.view.observed_to
        if first < observed_to or first >= min(end, delivery.state.data.next_offset):
            return min(first, end)
        await delivery.state.catch_up_to(delivery.machine, Offset(observed_to + 1))


async def _first_time(data: LogReader, offset: Offset) -> Microseconds | None:
    """When the first message from ``offset`` on was published; ``None`` if there is none."""
    offset, bytes_max = max(offset, data.start_offset), 1
    while offset < data.next_offset:
        for entry in await data.read(offset, bytes_max):
            if not is_hidden(entry):
                return entry.append_time
            offset = entry.next_offset
        bytes_max = _READ_BYTES  # there may be many that are hidden
    return None
