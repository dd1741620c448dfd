"""Brings the topics and subscriptions of a mirror in step with the source: settings, splits, deletions.

Everything can be repeated, by several nodes at the same time: each change is one commit of the metadata
store that expects what it changes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from fnmatch import fnmatchcase
from operator import attrgetter

import structlog
from msgspec.structs import replace

from quiver.broker.definitions.restored_topic import restored_topic
from quiver.broker.definitions.subscriptions import Subscriptions
from quiver.broker.definitions.topics import Topics
from quiver.broker.mirror.catalog import MirrorRecord
from quiver.broker.mirror.lineage import aside_name, returns_renamed, was_copied_from
from quiver.broker.subscription.catalog import SubscriptionCatalog, SubscriptionRecord, covers
from quiver.broker.topics.catalog import TopicCatalog, TopicRecord
from quiver.errors import QuiverError, SubscriptionExists, TopicExists
from quiver.model.mirror.origin import Origin
from quiver.model.mirror.settings import copy_name
from quiver.model.topic import TopicSettings
from quiver.protocol import SourceDescribed, SubscriptionInfo, TopicInfo

logger = structlog.get_logger()

Starts = Callable[[TopicInfo], Awaitable[list[int]]]
"""Asks the source where the log of each partition of a topic begins."""


class DefinitionCopy:
    """``cluster`` is the id of this cluster, ``leads`` whether this node leads a partition, ``now_us``
    the time."""

    def __init__(
        self,
        mirror: MirrorRecord,
        cluster: str,
        topic_catalog: TopicCatalog,
        subscription_catalog: SubscriptionCatalog,
        topics: Topics,
        subscriptions: Subscriptions,
        *,
        leads: Callable[[TopicRecord, int], bool],
        now_us: Callable[[], int],
    ) -> None:
        self._mirror = mirror
        self._cluster = cluster
        self._topic_catalog = topic_catalog
        self._subscription_catalog = subscription_catalog
        self._topics = topics
        self._subscriptions = subscriptions
        self._leads = leads
        self._now_us = now_us
        self.errors: dict[str, str] = {}
        """Why topics of the source are not copied, or not in step, by their name there."""
        self.lacking: dict[str, str] = {}
        """What the source does not show of topics that are copied."""
        self._fenced: frozenset[str] = frozenset()
        self._has_splits_left = False

    def is_fenced(self, copy: TopicRecord) -> bool:
        """Whether the source delivers nothing of a topic any more, as somebody promotes it."""
        return copy.origin is not None and copy.origin.topic in self._fenced

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to do of what the source had last."""
        return not (self.errors or self._has_splits_left)

    async def follow(self, source: SourceDescribed, starts: Starts, *, decides: bool) -> None:
        """Take over what the source has. Only a node that ``decides`` creates and alters."""
        self.errors, self._has_splits_left = {}, False
        self._fenced = frozenset(one.name for one in source.topics if one.moved_to)
        self.lacking = {
            name: f"the token may not consume from {count} of its subscriptions: they are not copied"
            for name, count in source.hidden_subscriptions.items()
        }
        for info in sorted(source.topics, key=attrgetter("number")):  # so that numbers stay free
            if not self._mirror.settings.covers(info.name):
                continue
            try:
                await self._follow_topic(info, source, starts, decides=decides)
            except QuiverError as error:
                self.errors[info.name] = error.message
        shown = {one.name for one in source.topics}
        for name in self._mirror.settings.topics:
            if "*" not in name and name not in shown:
                self.errors[name] = "the source does not have it, or the token may not consume it"
        if decides and self._mirror.settings.with_subscriptions:
            for one in source.subscriptions:
                try:
                    await self._follow_subscription(one)
                except QuiverError as error:
                    self.errors[one.name] = error.message

    # ------------------------------------------------------------------ topics

    async def _follow_topic(
        self, info: TopicInfo, source: SourceDescribed, starts: Starts, *, decides: bool
    ) -> None:
        name = copy_name(self._mirror.settings.rename, self._mirror.name, info.name)
        origin = self._origin(info, source.cluster)
        if self._cluster in origin.clusters or returns_renamed(info, name, self._cluster):
            self.errors[info.name] = "its messages come from this cluster"
            return
        known = next(iter(self._topic_catalog.named([name])), None)
        if known is None:
            if decides:
                await self._create(info, name, origin, starts)
        elif known.failback is not None:
            await self._follow_failback(info, origin, known, source, decides=decides)
        elif known.origin is None:
            if was_copied_from(info, known, self._cluster):
                await self._begin_failback(info, origin, known, decides=decides)
            elif known.promoted_from is None or known.promoted_from.topic != info.name:
                self.errors[info.name] = f"there is a topic {name!r} that is no copy of it"
        elif (known.origin.mirror, known.origin.topic) != (origin.mirror, origin.topic):
            self.errors[info.name] = f"topic {name!r} is a copy of {known.origin}"
        elif known.origin.cluster != source.cluster:
            self.errors[info.name] = f"the source is another cluster than {known.origin.cluster}"
        elif known.origin.number != info.number:
            self.errors[info.name] = "it was deleted at the source and created again"
        else:
            await self._keep_in_step(info, known, decides=decides)

    def _origin(self, info: TopicInfo, cluster: str) -> Origin:
        return Origin(
            mirror=self._mirror.name,
            cluster=cluster,
            topic=info.name,
            number=info.number,
            promotions=info.promotions,
            through=[] if info.origin is None else info.origin.clusters,
        )

    async def _create(self, info: TopicInfo, name: str, origin: Origin, starts: Starts) -> None:
        begin = await starts(info)
        partitions = [
            replace(one, start_offset=begin[place]) for place, one in enumerate(info.partitions)
        ]
        settings = _own(info.settings, TopicSettings())
        copy = replace(info, name=name, partitions=partitions, settings=settings)
        try:
            await self._topics.create_copy(copy, origin)
        except TopicExists:
            return  # another node was quicker

    async def _keep_in_step(self, info: TopicInfo, known: TopicRecord, *, decides: bool) -> None:
        settings = _own(info.settings, known.settings)
        if decides and settings != known.settings:
            await self._topics.follow_settings(known.name, settings)
        for split in restored_topic(info).splits[len(known.splits) :]:
            current = self._topic_catalog.get(known.name)
            if len(current.first_hashes) != split.child or not self._leads(current, split.parent):
                self._has_splits_left = True  # for another node, or for this one if it leads again
                return
            await self._topics.follow_split(current, split)

    # ------------------------------------------------------------------ failback

    async def _begin_failback(
        self, info: TopicInfo, origin: Origin, known: TopicRecord, *, decides: bool
    ) -> None:
        """The topic at the source was promoted while it was a copy of this one."""
        if not self._mirror.settings.failback:
            self.errors[info.name] = (
                f"the topic {known.name!r} here is the one that it was copied from before it was "
                "promoted: set failback on the mirror to let that one become a copy"
            )
            return
        splits = restored_topic(info).splits
        if known.splits != splits[: len(known.splits)]:
            self.errors[info.name] = (
                f"the topic {known.name!r} here was split after its copy was promoted: back it up and "
                "delete it"
            )
            return
        if decides:
            await self._topics.begin_failback(known, origin, self._aside(known.name))
        self.errors[info.name] = f"it becomes a copy of {origin}"

    def _aside(self, name: str) -> str:
        return aside_name(name, self._now_us(), lambda one: bool(self._topic_catalog.named([one])))

    async def _follow_failback(
        self,
        info: TopicInfo,
        origin: Origin,
        known: TopicRecord,
        source: SourceDescribed,
        *,
        decides: bool,
    ) -> None:
        """Let it be a copy once its logs are cut: its subscriptions first, so that none delivers."""
        failback = known.failback
        assert failback is not None
        if (failback.origin.cluster, failback.origin.number) != (origin.cluster, origin.number):
            self.errors[info.name] = f"topic {known.name!r} becomes a copy of {failback.origin}"
            return
        if not failback.is_cut or not decides:
            self.errors[info.name] = str(failback)
            return
        for one in source.subscriptions if self._mirror.settings.with_subscriptions else ():
            reads = any(fnmatchcase(known.name, wanted) for wanted in one.settings.topics)
            if not reads or not self._subscription_catalog.has(one.name):
                continue
            if self._subscription_catalog.get(one.name).mirror != self._mirror.name:
                await self._subscriptions.adopt(one.name, self._mirror.name)
        await self._topics.finish_failback(known)

    # ------------------------------------------------------------------ subscriptions

    async def _follow_subscription(self, info: SubscriptionInfo) -> None:
        copied = {one.name for one in self._copies()}
        if not any(topic in copied or "*" in topic for topic in info.settings.topics):
            return
        if not self._subscription_catalog.has(info.name):
            try:
                await self._subscriptions.create_copy(info, self._mirror.name)
            except SubscriptionExists:
                return  # another node was quicker
        known = self._subscription_catalog.get(info.name)
        if known.mirror != self._mirror.name:
            self.errors[info.name] = f"there is a subscription {info.name!r} that is no copy of it"
        elif known.settings != info.settings:
            await self._subscriptions.follow_settings(info.name, info.settings)

    # ------------------------------------------------------------------ deletions

    def gone(self, source: SourceDescribed) -> list[TopicRecord]:
        """Copies whose topics the source does not show any more, though they would be copied.

        Of another cluster in its place nothing follows.
        """
        shown = {one.name for one in source.topics}
        return [
            one
            for one in self._copies()
            if one.origin is not None
            and one.origin.cluster == source.cluster
            and one.origin.topic not in shown
            and self._mirror.settings.covers(one.origin.topic)
        ]

    def gone_subscriptions(self, source: SourceDescribed) -> list[str]:
        """Copied subscriptions that the source does not show any more, and that read nothing else here."""
        if not self._mirror.settings.with_subscriptions:
            return []
        shown = {one.name for one in source.subscriptions}
        return [
            one.name
            for one in self._subscription_catalog.all()
            if one.mirror == self._mirror.name
            and one.name not in shown
            and self._reads_only(one, source.cluster)
        ]

    def _reads_only(self, record: SubscriptionRecord, cluster: str) -> bool:
        """Whether all that a subscription reads here is copied from this cluster."""
        copied = {
            one.name for one in self._copies() if one.origin and one.origin.cluster == cluster
        }
        return all(
            one.name in copied
            for one in self._topic_catalog.topics()
            if covers(record.name, record.settings, one.name)
        )

    async def delete(self, record: TopicRecord) -> None:
        """The topic of a copy was deleted at the source."""
        await self._topics.delete(record.name)

    async def delete_subscription(self, name: str) -> None:
        """It was deleted at the source. Its topics follow by themselves."""
        await self._subscriptions.delete_copy(name)

    def _copies(self) -> list[TopicRecord]:
        topics = self._topic_catalog.topics()
        name = self._mirror.name
        return [one for one in topics if one.origin is not None and one.origin.mirror == name]


def _own(settings: TopicSettings, own: TopicSettings) -> TopicSettings:
    """Settings of the source, but for those that depend on this cluster's nodes."""
    return replace(
        settings,
        replicas=own.replicas,
        min_in_sync=own.min_in_sync,
        allow_data_loss=own.allow_data_loss,
    )
