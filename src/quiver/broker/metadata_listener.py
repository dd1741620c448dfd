"""Applies changes of the metadata store to a broker: definitions, and which partitions it leads."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from quiver.aio import TaskSet
from quiver.broker.mirror.catalog import MirrorCatalog
from quiver.broker.partition.partitions import Partitions
from quiver.broker.partition.producer_ids import ProducerIds
from quiver.broker.partition.replicated_storage import logs_of
from quiver.broker.subscription.catalog import SubscriptionCatalog, SubscriptionRecord
from quiver.broker.subscription.directory import SubscriptionDirectory
from quiver.broker.topics.catalog import TopicCatalog, TopicRecord
from quiver.cluster.metadata.store import Delete, Entry
from quiver.cluster.records import PartitionId
from quiver.cluster.replica.manager import LogDefinition
from quiver.errors import QuiverError
from quiver.metrics.traffic import Traffic
from quiver.model.ids import Offset
from quiver.model.topic import TopicSettings

logger = structlog.get_logger()


class MetadataListener:
    def __init__(
        self,
        topics: TopicCatalog,
        subscription_catalog: SubscriptionCatalog,
        producer_ids: ProducerIds,
        partitions: Partitions,
        subscriptions: SubscriptionDirectory,
        traffic: Traffic,
        mirrors: MirrorCatalog,
    ) -> None:
        self._mirrors = mirrors
        self._topics = topics
        self._subscription_catalog = subscription_catalog
        self._producer_ids = producer_ids
        self._partitions = partitions
        self._subscriptions = subscriptions
        self._traffic = traffic
        self._opening = TaskSet()

    async def close(self) -> None:
        await self._opening.wait()

    # ------------------------------------------------------------------ definitions

    def reload(self, entries: Sequence[Entry], revision: int) -> None:
        """Everything that is in the metadata store now."""
        self._topics.registry.reload(entries, revision)
        self._subscription_catalog.registry.reload(entries, revision)
        self._mirrors.registry.reload(entries, revision)
        self._producer_ids.reload(entries)

    def apply(self, changes: Sequence[Entry | Delete], revision: int) -> None:
        """What one commit has changed in the metadata store, this node's or another's."""
        for change in changes:
            self._topics.registry.apply(change, revision)
            self._subscription_catalog.registry.apply(change, revision)
            self._mirrors.registry.apply(change, revision)
            self._producer_ids.apply(change)

    def topic_changed(self, old: TopicRecord | None, new: TopicRecord | None) -> None:
        """Another node has made, changed or deleted a topic."""
        if new is not None:
            self._partitions.reconfigure(new)
        elif old is not None:
            self._traffic.topics.forget(old.name)

    def subscription_changed(
        self, old: SubscriptionRecord | None, new: SubscriptionRecord | None
    ) -> None:
        """Another node has made, changed or deleted a subscription."""
        if old is not None and (new is None or new.number != old.number):
            self._subscriptions.forget(old)
        elif new is not None:
            self._subscriptions.altered(new)

    # ------------------------------------------------------------------ partitions

    def _placed(self, partition: PartitionId) -> tuple[TopicRecord | None, int]:
        """The topic and the index of a partition that the cluster knows."""
        folder, _, index = partition.rpartition("/")
        topic, _, number = folder.rpartition("@")
        record = self._topics.numbered(int(number))
        return (record if record is not None and record.name == topic else None), int(index)

    def logs_of(self, partition: PartitionId) -> tuple[LogDefinition, ...]:
        """The logs of a replica that this node is to hold, and their settings."""
        record, index = self._placed(partition)
        settings = TopicSettings() if record is None else record.settings
        first_offset = Offset(0) if record is None else record.first_offset(index)
        cut = None if record is None else record.cut_of(index)
        return logs_of(self._partitions.log_settings(settings), first_offset, cut)

    def leads_now(self, partition: PartitionId) -> None:
        """This node has begun to lead a partition: have it ready for whoever comes."""
        record, index = self._placed(partition)
        if record is not None:
            self._opening.start(self._open(record, index))

    async def _open(self, record: TopicRecord, index: int) -> None:
        try:
            await self._partitions.get(record, index)
            self._subscriptions.look_again()
        except QuiverError as error:  # whoever needs it will try again
            logger.debug("partition is not open yet", topic=record.name, error=error.message)
