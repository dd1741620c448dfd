"""Finds messages by id: where they are, and their state in each subscription. Cancels scheduled ones."""

from __future__ import annotations

import msgspec
from pyroaring import BitMap64

from quiver.broker.delivery.batch_slice import batch_slice
from quiver.broker.partition.partitions import Partitions
from quiver.broker.subscription.directory import SubscriptionDirectory
from quiver.broker.topics.catalog import TopicCatalog, TopicRecord
from quiver.errors import MessageNotFound
from quiver.log.log import LogReader
from quiver.model.batch import StoredBatch
from quiver.model.envelope import is_hidden
from quiver.model.message_id import MessageId, parse_message_id
from quiver.protocol import Status


class Found(msgspec.Struct, frozen=True):
    """A message that was looked up, and where it stands; its entry is gone if retention took it."""

    id: MessageId
    entry: StoredBatch | None
    statuses: list[Status]


class Lookup:
    def __init__(
        self, topics: TopicCatalog, partitions: Partitions, subscriptions: SubscriptionDirectory
    ) -> None:
        self._topics = topics
        self._partitions = partitions
        self._subscriptions = subscriptions

    async def find(self, topic: str, message_id: str) -> Found:
        """A message by its id, if retention has it still, and where each subscription has it."""
        record, one = self._topics.get(topic), parse_message_id(message_id)
        log = await self._require(record, one)
        entry: StoredBatch | None = None
        if one.offset >= log.start_offset:
            found = (await log.read(one.offset, 1))[0]
            if is_hidden(found) or found.append_time != one.append_time:
                raise MessageNotFound(f"{topic!r} has no message {message_id[:80]!r}")
            entry = batch_slice(found, BitMap64([one.offset]))
        statuses = await self._subscriptions.statuses(record, one, entry)
        return Found(one, entry, statuses)

    async def cancel(self, topic: str, ids: list[str]) -> int:
        """Let scheduled messages never be delivered; how many of them that was in time for."""
        record = self._topics.get(topic)
        record.require_writable()
        places: dict[int, BitMap64] = {}
        for one in map(parse_message_id, ids):
            await self._require(record, one)
            places.setdefault(one.partition, BitMap64()).add(one.offset)
        cancelled = [
            await self._subscriptions.cancel(record, index, offsets)
            for index, offsets in places.items()
        ]
        return sum(map(len, cancelled))

    async def _require(self, record: TopicRecord, one: MessageId) -> LogReader:
        """The log that the message is or was in."""
        if one.topic == record.number and one.partition < len(record.first_hashes):
            log = (await self._partitions.get(record, one.partition)).committed
            if one.offset < log.next_offset:
                return log
        raise MessageNotFound(f"{record.name!r} has no message {str(one)!r}")
