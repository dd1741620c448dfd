"""One mirror at work on this node: it follows the source's definitions and copies what this node leads.

One that is paused only looks how far behind its copies are.
"""

from __future__ import annotations

import asyncio

import structlog

from quiver.aio import cancel_and_wait, report_unexpected
from quiver.broker.mirror.catalog import MirrorRecord
from quiver.broker.mirror.definition_copy import DefinitionCopy
from quiver.broker.mirror.mirrors import described
from quiver.broker.mirror.progress import PartitionProgress
from quiver.broker.mirror.source_contact import SourceContact
from quiver.broker.topics.catalog import TopicRecord
from quiver.client.transport.backoff import RetryBackoff
from quiver.edge.mirror.environment import MirrorEnvironment
from quiver.edge.mirror.failback import FailbackDriver
from quiver.edge.mirror.link import SourceLink
from quiver.edge.mirror.partition_puller import PartitionPuller
from quiver.edge.mirror.source_watch import WATCH_S, SourceWatch
from quiver.edge.mirror.state_puller import StatePuller
from quiver.errors import PermissionDenied, QuiverError, SubscriptionNotFound, TopicNotFound
from quiver.protocol import (
    CopiedTopic,
    DescribeSource,
    DescribeSubscription,
    DescribeTopic,
    FenceTopic,
    FetchLog,
    LogFetched,
    MirrorInfo,
    SourceDescribed,
    Subscription,
    Topic,
    TopicInfo,
)

FOLLOW_S = 1.0
"""How often the source is asked for its topics."""
DROPPED = "the mirror does not copy it any more: promote the copy, or delete it"
_BACKOFF = RetryBackoff(first_s=0.2, most_s=15.0)

logger = structlog.get_logger()

_Place = tuple[int, int]


class RunningMirror:
    """Between ``start`` and ``stop``. ``adjust`` it whenever this node leads something else."""

    def __init__(self, record: MirrorRecord, environment: MirrorEnvironment) -> None:
        self.record = record
        self._environment = environment
        self._mirrors = environment.mirrors
        settings = record.settings
        clock = environment.clock
        source = environment.reach(settings.source, record.token, clock)
        self._link = SourceLink(
            source,
            settings.rate_bytes,
            clock,
            compression=settings.compression,
            share=self._share,
            partitions=lambda: len(self._pulling),
        )
        self._definitions: DefinitionCopy = self._mirrors.definition_copy(
            record, environment.cluster, environment.clock.time_us
        )
        self._contact = SourceContact(record.name, environment.clock)
        self._failback = FailbackDriver(
            record.name, self._link, self._mirrors.failbacks, environment.clock
        )
        self._failing_back: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._pulling: dict[_Place, list[asyncio.Task[None]]] = {}
        self._progress: dict[_Place, PartitionProgress] = {}
        self._version: object = None

    def start(self) -> None:
        if self.record.settings.paused:
            self._following = asyncio.create_task(self._watch())
            return
        self._mirrors.contacts[self.record.name] = self._contact
        self._following = asyncio.create_task(self._follow())
        self._failing_back = asyncio.create_task(self._failback.run())

    async def stop(self) -> None:
        pulling = [task for tasks in self._pulling.values() for task in tasks]
        await cancel_and_wait(self._following, self._failing_back, *pulling)
        self._pulling.clear()
        for place in list(self._progress):
            self._forget(place)
        if self._mirrors.contacts.get(self.record.name) is self._contact:
            del self._mirrors.contacts[self.record.name]
        await self._link.close()

    def _forget(self, place: _Place) -> None:
        progress = self._progress.pop(place, None)
        if self._mirrors.progress.get(place) is progress:
            self._mirrors.progress.pop(place, None)

    # ------------------------------------------------------------------ definitions

    async def _follow(self) -> None:
        """Keep topics and subscriptions in step with the source, for as long as it takes."""
        failures, chance, known = 0, self._environment.chance(), ""
        own: object = None
        while True:
            try:
                if own != self._mirrors.definitions:
                    known = ""  # something may be missing here that was there
                source = await self._link.call(SourceDescribed, self._request(known))
                self._contact.cluster = source.cluster
                if not source.is_unchanged:
                    own, decides = self._mirrors.definitions, self._environment.decides()
                    self._contact.showed(one.name for one in source.subscriptions)
                    await self._definitions.follow(source, self._starts, decides=decides)
                    await self._follow_deletions(source)
                    is_settled = decides and self._definitions.is_settled
                    known = source.version if is_settled else ""
                failures = 0
                self._contact.answered(source.cluster)
            except (QuiverError, OSError) as error:
                failures += 1
                self._report(error)
            except Exception as error:
                failures += 1
                self._report(error)
                report_unexpected("a mirror met an error", error)
            await self._environment.clock.sleep(FOLLOW_S + _BACKOFF.pause_s(failures, chance))

    async def _watch(self) -> None:
        """Look how far behind the copies are, as long as the mirror is paused."""
        failures, chance, known = 0, self._environment.chance(), ""
        watch = SourceWatch(self._mirrors, self._progress, self.source_topic)
        while True:
            try:
                source = await self._link.call(SourceDescribed, self._request(known))
                failures, known = 0, source.version
                self._contact.answered(source.cluster)
                await watch.look(self.record.name, source.cluster)
            except (QuiverError, OSError) as error:
                failures += 1
                self._report(error)
            except Exception as error:
                failures += 1
                self._report(error)
                report_unexpected("a mirror met an error", error)
            await self._environment.clock.sleep(WATCH_S + _BACKOFF.pause_s(failures, chance))

    def _request(self, known: str) -> DescribeSource:
        settings = self.record.settings
        return DescribeSource(
            topics=settings.topics, with_subscriptions=settings.with_subscriptions, known=known
        )

    def _report(self, error: Exception) -> None:
        before = self._contact.error
        self._contact.failed(error)
        if self._contact.error != before:
            logger.warning(
                "mirror cannot reach its source",
                mirror=self.record.name,
                error=self._contact.error,
            )

    async def _starts(self, info: TopicInfo) -> list[int]:
        """Where the first entry of each partition begins; it may be before the first message."""
        return [await self._first_offset(info, one.index) for one in info.partitions]

    async def _first_offset(self, info: TopicInfo, index: int) -> int:
        request = FetchLog(
            topic=info.name, partition=index, offset=0, number=info.number, bytes_max=1
        )
        reply, body = await self._link.call_leader(LogFetched, request, info.name, index)
        return self._environment.first_offset(reply, body)

    async def _follow_deletions(self, source: SourceDescribed) -> None:
        """Subscriptions first: what they read tells where they come from."""
        if not self.record.settings.with_deletions or not self._environment.decides():
            return
        for name in self._definitions.gone_subscriptions(source):
            try:
                await self._link.call(Subscription, DescribeSubscription(name=name))
            except PermissionDenied:
                continue  # it is there, and not for this token
            except SubscriptionNotFound:
                logger.warning("subscription was deleted at the source", subscription=name)
                await self._definitions.delete_subscription(name)
        for copy in self._definitions.gone(source):
            assert copy.origin is not None
            try:
                await self._link.call(Topic, DescribeTopic(name=copy.origin.topic, extents=False))
            except PermissionDenied:
                continue
            except TopicNotFound:
                logger.warning("topic was deleted at the source", topic=copy.name)
                await self._definitions.delete(copy)

    # ------------------------------------------------------------------ partitions

    def _wanted(self) -> list[TopicRecord]:
        """The copies of topics that the mirror still names: its topics may have been altered."""
        copies = self._mirrors.copies(self.record.name)
        return [one for one in copies if self.copies(one)]

    def copies(self, copy: TopicRecord) -> bool:
        """Whether the topic of a copy is among those that the mirror copies."""
        return copy.origin is not None and self.record.settings.covers(copy.origin.topic)

    def adjust(self) -> None:
        """Copy exactly those partitions that this node leads now."""
        if self._version == self._mirrors.version:
            self._restart_ended()
            return
        self._version = self._mirrors.version
        wanted = {
            (copy.number, index): copy
            for copy in self._wanted()
            for index in self._mirrors.led(copy)
        }
        for place in set(self._pulling) - set(wanted):
            for task in self._pulling.pop(place):
                task.cancel()
            self._forget(place)
        for place, copy in wanted.items():
            if place not in self._pulling:
                self._begin(copy, place)

    def _restart_ended(self) -> None:
        """What ended by itself met an error that nobody expected: it is logged, and begun again."""
        for place, tasks in list(self._pulling.items()):
            if not any(task.done() for task in tasks):
                continue
            for task in tasks:
                if task.done() and not task.cancelled() and task.exception() is not None:
                    logger.error(
                        "copying ended", mirror=self.record.name, error=repr(task.exception())
                    )
                task.cancel()
            del self._pulling[place]
            self._version = None

    def _begin(self, copy: TopicRecord, place: _Place) -> None:
        environment, index = self._environment, place[1]
        progress = self._progress.setdefault(
            place, PartitionProgress(self.record.name, copy.name, index, environment.clock)
        )
        self._mirrors.progress[place] = progress
        self._pulling[place] = []
        if self.record.settings.paused:
            return
        puller = PartitionPuller(copy, index, self._link, progress, environment)
        tasks = [asyncio.create_task(puller.run())]
        if self.record.settings.with_subscriptions:
            states = StatePuller(
                copy,
                index,
                self._link,
                progress,
                environment,
                is_fenced=lambda: self._definitions.is_fenced(copy),
            )
            tasks.append(asyncio.create_task(states.run()))
        self._pulling[place] = tasks

    def _share(self) -> float:
        """The part of all partitions that this node copies."""
        every = sum(len(copy.first_hashes) for copy in self._wanted())
        return len(self._pulling) / every if every else 1.0

    # ------------------------------------------------------------------ what an operator sees and does

    def describe(self) -> MirrorInfo:
        """The mirror as this node sees it: with the partitions that it copies."""
        info = described(self.record)
        info.cluster, info.error = self._contact.cluster, self._contact.error
        for copy in self._mirrors.copies(self.record.name):
            assert copy.origin is not None
            partitions = [
                self._progress[copy.number, index].described()
                for index in range(len(copy.first_hashes))
                if (copy.number, index) in self._progress
            ]
            info.topics.append(
                CopiedTopic(
                    name=copy.name,
                    source=copy.origin.topic,
                    partitions=partitions,
                    diverged_to=copy.diverged_to,
                    error="" if self.copies(copy) else DROPPED,
                )
            )
        known = {one.source: one for one in info.topics}
        errors = self._definitions.lacking | self._definitions.errors | self._failback.errors
        for source, error in errors.items():
            if source in known:
                known[source].error = error
            else:
                info.topics.append(CopiedTopic(name="", source=source, error=error))
        info.copied_bytes = sum(one.copied_bytes for one in self._progress.values())
        info.fetched_bytes = self._link.fetched_bytes
        info.state = self._state(info)
        return info

    def _state(self, info: MirrorInfo) -> str:
        if self.record.settings.paused:
            return "paused"
        partitions = (one for topic in info.topics for one in topic.partitions)
        if self._contact.is_broken or any(one.is_broken for one in partitions):
            return "broken"
        return "copying" if info.cluster and not info.error else "connecting"

    async def fence(self, topic: str, moved_to: str) -> TopicInfo:
        """Ask the source to let a topic take nothing more; the topic then."""
        reply = await self._link.call(Topic, FenceTopic(name=topic, moved_to=moved_to))
        return reply.topic

    async def source_topic(self, topic: str) -> TopicInfo:
        """A topic of the source, with where its partitions end."""
        return (await self._link.call(Topic, DescribeTopic(name=topic))).topic
