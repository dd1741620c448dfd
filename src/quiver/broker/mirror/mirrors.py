"""The mirrors of a cluster: created, altered and deleted, and their copies promoted."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import structlog

from quiver.broker.definitions.changes import MetadataChanges
from quiver.broker.definitions.subscriptions import Subscriptions
from quiver.broker.definitions.topics import Topics
from quiver.broker.mirror.catalog import MirrorCatalog, MirrorRecord
from quiver.broker.mirror.definition_copy import DefinitionCopy
from quiver.broker.mirror.delivery_copy import DeliveryCopy
from quiver.broker.mirror.failback import FailbackPartitions
from quiver.broker.mirror.partition_copy import PartitionCopy
from quiver.broker.mirror.progress import PartitionProgress, mirror_samples
from quiver.broker.mirror.source_contact import SourceContact
from quiver.broker.partition.partitions import Partitions, Place
from quiver.broker.subscription.leaders import SubscriptionLeaders
from quiver.broker.topics.catalog import TopicCatalog, TopicRecord
from quiver.errors import ReadOnlySubscription, TopicNotFound
from quiver.metrics.sample import MirrorSample, SourceSample
from quiver.model.mirror.settings import MirrorSettings
from quiver.protocol import MirrorInfo

logger = structlog.get_logger()


class Mirrors:
    def __init__(
        self,
        catalog: MirrorCatalog,
        topic_catalog: TopicCatalog,
        leaders: SubscriptionLeaders,
        topics: Topics,
        subscriptions: Subscriptions,
        partitions: Partitions,
        changes: MetadataChanges,
        failbacks: FailbackPartitions,
    ) -> None:
        self.catalog = catalog
        self.failbacks = failbacks
        self._topic_catalog = topic_catalog
        self._leaders = leaders
        self._topics = topics
        self._subscriptions = subscriptions
        self._partitions = partitions
        self._changes = changes
        self.progress: dict[Place, PartitionProgress] = {}
        """How far this node is, of each partition that it copies."""
        self.contacts: dict[str, SourceContact] = {}
        """Of each mirror that copies on this node, whether its source answers."""

    def samples(self, now_us: int) -> list[MirrorSample]:
        """What this node copies, as it is now."""
        return mirror_samples(self.progress.values(), now_us)

    def source_samples(self) -> list[SourceSample]:
        """The sources of the mirrors that copy on this node, as they are now."""
        return [one.sample() for _, one in sorted(self.contacts.items())]

    def mirrored(self) -> frozenset[str]:
        """The topics that a mirror copies, on whatever node."""
        if not self.catalog.all():
            return frozenset()
        return frozenset(
            one.name
            for one in self._topic_catalog.topics()
            if one.origin is not None and self.catalog.has(one.origin.mirror)
        )

    async def create(self, name: str, settings: MirrorSettings, token: str) -> MirrorInfo:
        record = await self._changes.run(self.catalog.create(name, settings, token))
        logger.info("mirror created", mirror=name, source=settings.source, topics=settings.topics)
        return described(record)

    async def alter(self, name: str, changes: dict[str, Any], token: str) -> MirrorInfo:
        record = await self._changes.run(self.catalog.alter(name, changes, token))
        logger.info("mirror altered", mirror=name, changes=sorted(changes))
        return described(record)

    async def delete(self, name: str) -> None:
        await self._changes.run(self.catalog.delete(name))
        logger.info("mirror deleted", mirror=name)

    # ------------------------------------------------------------------ copies

    def require_deletable(self, subscription: str) -> None:
        """``ReadOnlySubscription`` if a mirror would bring a subscription back: its source has it.

        Of a queue, all messages would be copied again.
        """
        record = self._leaders.catalog.get(subscription)
        if not record.mirror or not self.catalog.has(record.mirror):
            return
        covered = self._leaders.covered(record.name, record.settings)
        if not any(record.copies(topic) for topic in covered):
            return
        contact = self.contacts.get(record.mirror)
        is_gone = contact is not None and contact.lacks(subscription)
        if is_gone or not self.catalog.get(record.mirror).settings.with_subscriptions:
            return
        raise ReadOnlySubscription(
            f"{subscription!r} is a copy, and mirror {record.mirror!r} would copy it again: delete it at "
            "the source, or promote its topics or remove the mirror first",
            subscription=subscription,
            mirror=record.mirror,
        )

    def copies(self, mirror: str) -> list[TopicRecord]:
        """The mirrored topics of a mirror."""
        topics = self._topic_catalog.topics()
        return [one for one in topics if one.origin is not None and one.origin.mirror == mirror]

    def led(self, record: TopicRecord) -> list[int]:
        """The partitions of a topic that this node leads."""
        return self._partitions.led(record)

    @property
    def version(self) -> tuple[int, int, int]:
        """Changes whenever this node may have something else to copy."""
        return (
            self.catalog.registry.version,
            self._topic_catalog.version,
            self._partitions.placement.version,
        )

    @property
    def definitions(self) -> tuple[int, int]:
        """Changes with every topic and subscription of this cluster, and never back."""
        return self._topic_catalog.registry.version, self._leaders.catalog.registry.version

    def current(self, record: TopicRecord) -> TopicRecord | None:
        """A mirrored topic as it is now; ``None`` if it is one no more."""
        known = self._topic_catalog.numbered(record.number)
        return known if known is not None and known.origin is not None else None

    async def partition_copy(self, record: TopicRecord, index: int) -> PartitionCopy:
        """The local partition to copy into; ``NotLeader`` if another node leads it."""
        return PartitionCopy(await self._partitions.get(record, index))

    async def delivery_copy(self, record: TopicRecord, index: int) -> DeliveryCopy:
        """The delivery state of a local partition, to be replaced by that of the source."""
        partition = await self._partitions.get(record, index)
        return DeliveryCopy(self._leaders.catalog, record, index, partition)

    def definition_copy(
        self, mirror: MirrorRecord, cluster: str, now_us: Callable[[], int]
    ) -> DefinitionCopy:
        """What brings topics and subscriptions in step with the source; ``cluster`` is this one."""
        return DefinitionCopy(
            mirror,
            cluster,
            self._topic_catalog,
            self._leaders.catalog,
            self._topics,
            self._subscriptions,
            leads=self._partitions.placement.leads,
            now_us=now_us,
        )

    # ------------------------------------------------------------------ promoting

    def promotable(self, patterns: list[str]) -> list[TopicRecord]:
        """The mirrored topics that match; ``TopicNotFound`` if none does."""
        found = [
            one
            for one in self._topic_catalog.topics()
            if one.source is not None and any(fnmatchcase(one.name, text) for text in patterns)
        ]
        if not found:
            raise TopicNotFound(
                f"no mirrored topic matches {', '.join(patterns)[:200]!r}: "
                "a topic that is not mirrored needs no promote"
            )
        return sorted(found, key=lambda one: one.name)


def described(record: MirrorRecord) -> MirrorInfo:
    """A mirror as it is defined."""
    return MirrorInfo(
        name=record.name,
        settings=record.settings,
        created_us=record.created_us,
        has_token=bool(record.token),
        state="paused" if record.settings.paused else "connecting",
    )
