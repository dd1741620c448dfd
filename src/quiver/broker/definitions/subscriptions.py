"""Subscriptions and queues: created, altered, described and deleted."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import structlog

from quiver.broker.definitions.changes import MetadataChanges
from quiver.broker.definitions.topics import Topics
from quiver.broker.remote.partition_router import PartitionRouter
from quiver.broker.subscription.catalog import SubscriptionRecord, dead_letter_topic
from quiver.broker.subscription.directory import SubscriptionDirectory, offset_within
from quiver.broker.subscription.leaders import SubscriptionLeaders
from quiver.broker.subscription.subscription import Subscription
from quiver.broker.topics.catalog import TopicRecord
from quiver.broker.topics.internal_topics import SETTINGS as INTERNAL_TOPICS
from quiver.broker.topics.registry import changed_settings
from quiver.errors import (
    NotLeader,
    QuiverError,
    SubscriptionExists,
    TopicExists,
    TopicNotFound,
)
from quiver.model.subscription import SubscriptionSettings
from quiver.model.topic import TopicSettings
from quiver.protocol import PartitionProgress, SubscriptionInfo

_COUNT_S = 2.0
"""How long a description waits for a dead-letter queue that has to be opened from a slow disk."""

logger = structlog.get_logger()


class Subscriptions:
    def __init__(
        self,
        leaders: SubscriptionLeaders,
        directory: SubscriptionDirectory,
        topics: Topics,
        router: PartitionRouter,
        changes: MetadataChanges,
    ) -> None:
        self._leaders = leaders
        self._catalog = leaders.catalog
        self._directory = directory
        self._topics = topics
        self._router = router
        self._changes = changes

    async def create(
        self,
        name: str,
        settings: SubscriptionSettings,
        *,
        start: str = "latest",
        start_time: int | None = None,
        start_offset: int | None = None,
        exist_ok: bool = False,
        is_queue: bool = False,
    ) -> SubscriptionInfo:
        """Make a subscription that begins at a place in each partition there is."""
        for topic in INTERNAL_TOPICS.keys() & set(settings.topics):
            await self._topics.internal(topic)
        starts_at_place = start == "latest" or start_time is not None or start_offset is not None
        try:
            record = await self._changes.run(
                self._create(
                    name,
                    settings,
                    start_time,
                    start_offset,
                    starts_at_place=starts_at_place,
                    is_queue=is_queue,
                )
            )
        except SubscriptionExists:
            record = self._catalog.get(name)
            if not exist_ok or record.settings != settings:
                raise
        return _info(record)

    async def _create(
        self,
        name: str,
        settings: SubscriptionSettings,
        start_time: int | None,
        start_offset: int | None,
        *,
        starts_at_place: bool,
        is_queue: bool,
    ) -> SubscriptionRecord:
        self._require_topics(settings)
        starts: dict[str, int] = {}
        if starts_at_place:
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
        for topic in self._leaders.covered(name, settings):
            for index in range(len(topic.first_hashes)):
                first, end, place = await self._router.start(topic, index, start_time, start_offset)
                if start_offset is not None:
                    place = offset_within(first, start_offset, end)
                starts[f"{topic.number}/{index}"] = place
        return starts

    async def restore(self, info: SubscriptionInfo) -> SubscriptionInfo:
        """A subscription of a backup. It begins where its topics end, until its state is restored."""
        return await self.create(
            info.name, info.settings, start="latest", exist_ok=True, is_queue=info.is_queue
        )

    async def create_copy(self, info: SubscriptionInfo, mirror: str) -> None:
        """A subscription of another cluster. Its state comes with the messages of its topics."""
        creating = self._catalog.create(
            info.name, info.settings, {}, is_queue=info.is_queue, mirror=mirror
        )
        await self._changes.run(creating)
        logger.info("mirrored subscription created", subscription=info.name, mirror=mirror)

    async def adopt(self, name: str, mirror: str) -> None:
        """Let a mirror copy a subscription that was this cluster's own."""
        await self._changes.run(self._catalog.adopt(name, mirror))
        logger.info("subscription is a copy again", subscription=name, mirror=mirror)

    async def follow_settings(self, name: str, settings: SubscriptionSettings) -> None:
        """Let a mirrored subscription have the settings of its source."""
        await self._changes.run(self._directory.alter(name, msgspec.to_builtins(settings)))

    async def create_queue(
        self, name: str, topic: TopicSettings, changes: dict[str, Any], *, exist_ok: bool
    ) -> SubscriptionInfo:
        """A topic and its built-in subscription, which begins with the first message."""
        settings = changed_settings(SubscriptionSettings(topics=[name]), changes)
        await self._topics.create(name, topic, exist_ok=exist_ok)
        info = await self.create(name, settings, start="earliest", exist_ok=exist_ok, is_queue=True)
        await self._create_dead_letter_queue(name, info.settings)
        return info

    async def _create_dead_letter_queue(self, name: str, settings: SubscriptionSettings) -> None:
        """So that everybody can look at it before there is anything in it.

        A queue without it (it may hold dead letters itself) gets it with its first dead letter.
        """
        if settings.max_deliveries:
            await self.dead_letter_queue(dead_letter_topic(name, settings))

    async def dead_letter_queue(self, name: str) -> TopicRecord:
        """The topic for dead letters, with a subscription of its own name to take them back from."""
        with contextlib.suppress(TopicExists):
            await self._topics.create(name, TopicSettings())
        with contextlib.suppress(SubscriptionExists):
            settings = SubscriptionSettings(topics=[name], max_deliveries=0)
            await self.create(name, settings, start="earliest", is_queue=True)
        return self._leaders.topics.get(name)

    async def alter(self, name: str, changes: dict[str, Any]) -> SubscriptionInfo:
        record = await self._changes.run(self._alter(name, changes))
        if record.is_queue:
            await self._create_dead_letter_queue(name, record.settings)
        return await self._describe(record)

    async def _alter(self, name: str, changes: dict[str, Any]) -> SubscriptionRecord:
        self._leaders.require_delivering(name)
        if "topics" in changes:
            self._require_topics(changed_settings(self._catalog.get(name).settings, changes))
        return await self._directory.alter(name, changes)

    async def delete(self, name: str) -> None:
        """Of a queue, the topic goes too, and the dead-letter queue if it never had a message."""
        record = self._catalog.get(name)
        if record.is_queue:
            # First, so that whoever was interrupted in between can do it again.
            await self._delete_unused_letters(record)
            with contextlib.suppress(TopicNotFound):
                await self._topics.delete(name)
        await self._changes.run(self._directory.delete(name))

    async def delete_copy(self, name: str) -> None:
        """A mirrored subscription that its source has no more; its topics stay, also those of a queue."""
        await self._changes.run(self._directory.delete(name))
        logger.info("mirrored subscription deleted", subscription=name)

    async def _delete_unused_letters(self, record: SubscriptionRecord) -> None:
        letters = f"{record.name}.dlq"
        users = [
            one.name
            for one in self._catalog.all()
            if letters in (dead_letter_topic(one.name, one.settings), *one.settings.topics)
        ]
        is_own = dead_letter_topic(record.name, record.settings) == letters
        if not is_own or set(users) != {record.name, letters}:
            return
        topic = self._leaders.topics.get(letters)
        if len(topic.first_hashes) == 1:
            _, end, _ = await self._router.start(topic, 0, None, None)
            if end == 0:
                await self.delete(letters)

    async def describe(self, name: str) -> SubscriptionInfo:
        """The settings, and how many messages are in which state."""
        return await self._describe(self._catalog.get(name))

    async def _describe(self, record: SubscriptionRecord) -> SubscriptionInfo:
        letters = await self._dead_letters(record)
        if self._directory.is_unused(record):
            return self._unused(record, letters)
        subscription = await self._directory.get(record.name)
        if subscription.version is None:
            raise NotLeader(
                f"partitions of {record.name!r} are opening, so their depth is unknown; try again"
            )
        subscription.do_due()
        depth, group = subscription.depth, subscription.membership
        pending = depth.dead_letter_pending
        return msgspec.structs.replace(
            _info(record),
            ready=depth.ready,
            delayed=depth.delayed,
            leased=depth.leased,
            dead=None if letters is None and not pending else pending + (letters or 0),
            unseen=subscription.unseen,
            consumers=subscription.consumers,
            members=None if group is None else group.members,
            partitions=_progress(subscription),
        )

    def _unused(self, record: SubscriptionRecord, letters: int | None) -> SubscriptionInfo:
        """A subscription that has no messages yet. It is described without being opened."""
        topics = self._leaders.covered(record.name, record.settings)
        return msgspec.structs.replace(
            _info(record),
            ready=0,
            delayed=0,
            leased=0,
            dead=letters,
            unseen=0,
            consumers=[],
            members=[] if self._leaders.is_group(record.name) else None,
            partitions=[
                PartitionProgress(topic=topic.name, partition=index, committed=0, end=0, lag=0)
                for topic in topics
                for index in range(len(topic.first_hashes))
            ],
        )

    async def _dead_letters(self, record: SubscriptionRecord) -> int | None:
        """How many messages wait in its dead-letter queue, in what this node leads of that.

        ``None`` if they cannot be counted now: the queue itself can be described all the same.
        """
        name = dead_letter_topic(record.name, record.settings)
        if not self._catalog.has(name) or self._directory.is_unused(self._catalog.get(name)):
            return 0
        try:
            letters = await self._directory.get_within(name, _COUNT_S)
        except (QuiverError, TimeoutError) as error:
            code = getattr(error, "code", "timeout")
            logger.warning("dead letters cannot be counted", subscription=name, code=code)
            return None
        depth = letters.depth
        return depth.ready + depth.delayed + depth.leased + letters.unseen

    def infos(self) -> list[SubscriptionInfo]:
        """Every subscription, without its depth."""
        return [_info(record) for record in sorted(self._catalog.all(), key=lambda one: one.name)]

    def is_queue(self, name: str) -> bool:
        """Whether there is a queue of this name."""
        return self._catalog.has(name) and self._catalog.get(name).is_queue

    def _require_topics(self, settings: SubscriptionSettings) -> None:
        for wanted in settings.topics:
            if "*" not in wanted:
                self._leaders.topics.get(wanted)


def _progress(subscription: Subscription) -> list[PartitionProgress]:
    """How far it has come in each partition that this node leads."""
    found = [(one, one.progress) for one in subscription.partitions]
    return [
        PartitionProgress(
            topic=one.topic,
            partition=one.partition,
            committed=progress.committed,
            end=progress.end,
            lag=progress.lag,
        )
        for one, progress in found
    ]


def _info(record: SubscriptionRecord) -> SubscriptionInfo:
    return SubscriptionInfo(
        name=record.name,
        number=record.number,
        settings=record.settings,
        created_us=record.created_us,
        is_queue=record.is_queue,
        mirror=record.mirror,
    )
