"""Topics: created, altered, split, described and deleted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import msgspec
import structlog

from quiver.broker.definitions.changes import MetadataChanges
from quiver.broker.definitions.restored_topic import restored_topic
from quiver.broker.partition.partitions import Partitions
from quiver.broker.partition.split import PartitionSplitter
from quiver.broker.remote.partition_router import RemoteBroker
from quiver.broker.topics import failback
from quiver.broker.topics.catalog import TopicCatalog, TopicRecord
from quiver.broker.topics.internal_topics import require_users_own
from quiver.errors import NotLeader, QuiverError, ShuttingDown, TopicExists, TopicNotFound
from quiver.metrics.traffic import Traffic
from quiver.model.layout import Split
from quiver.model.mirror.failback import FailbackPartition
from quiver.model.mirror.origin import Origin
from quiver.model.topic import Durability, Retention, TopicSettings
from quiver.protocol import OpenTransactionInfo, PartitionInfo, TopicInfo

_OPENED_AT_ONCE = 4

logger = structlog.get_logger()


class Topics:
    """``on_split`` is called when there may be other partitions to deliver from than before."""

    def __init__(
        self,
        catalog: TopicCatalog,
        partitions: Partitions,
        splitter: PartitionSplitter,
        changes: MetadataChanges,
        *,
        remote: RemoteBroker | None,
        traffic: Traffic,
        on_split: Callable[[], None],
    ) -> None:
        self._catalog = catalog
        self._partitions = partitions
        self._splitter = splitter
        self._changes = changes
        self._remote = remote
        self._traffic = traffic
        self._on_split = on_split

    # ------------------------------------------------------------------ changes

    async def create(
        self, name: str, settings: TopicSettings, *, exist_ok: bool = False
    ) -> TopicInfo:
        try:
            record = await self._changes.run(self._catalog.create(name, settings))
        except TopicExists:
            record = self._catalog.get(name)
            if not exist_ok or record.settings != settings:
                raise
            return await self._describe(record)
        logger.info("topic created", topic=name, partitions=settings.partitions)
        infos = self._partition_infos(record)
        return _topic_info(record, [_with_extent(info, 0, 0, 0) for info in infos])

    async def restore(self, info: TopicInfo, backup: str) -> TopicInfo:
        """A topic of a backup, without its messages; the same again if it was restored from there."""
        restored = restored_topic(info, backup)
        try:
            record = await self._changes.run(self._catalog.restore(restored))
        except TopicExists:
            record = self._catalog.get(info.name)
            if record.restored_from != backup or not backup:
                raise
        else:
            logger.info("topic is being restored", topic=info.name, number=record.number)
        return _topic_info(record, self._partition_infos(record))

    async def create_copy(self, info: TopicInfo, origin: Origin) -> None:
        """A topic of another cluster, without its messages. Only its mirror stores in it."""
        await self._changes.run(self._catalog.restore(restored_topic(info, origin=origin)))
        logger.info("mirrored topic created", topic=info.name, source=str(origin))

    async def follow_settings(self, name: str, settings: TopicSettings) -> None:
        """Let a mirrored topic have the settings of its source."""
        await self._changes.run(self._alter(name, msgspec.to_builtins(settings)))

    async def follow_split(self, record: TopicRecord, split: Split) -> None:
        """Split a mirrored topic where its source was split; for the leader of the parent."""
        await self._changes.run(self._follow_split(record, split))

    async def _follow_split(self, record: TopicRecord, split: Split) -> None:
        changed = await self._splitter.follow(record, split)
        self._partitions.reconfigure(changed)
        self._on_split()

    async def promote(self, name: str) -> None:
        """Let a mirrored topic be one of this cluster: it is written to, and delivered from."""
        await self._changes.run(self._catalog.promote(name))
        self._on_split()
        logger.info("mirrored topic promoted", topic=name)

    async def begin_failback(self, record: TopicRecord, origin: Origin, aside: str) -> None:
        """Let a topic take and deliver nothing more, because it becomes a copy of its former copy."""
        changing = self._catalog.change(
            record.name, lambda known: failback.begun(record, known, origin, aside)
        )
        await self._changes.run(changing)
        self._on_split()
        logger.warning("failback begins", topic=record.name, source=str(origin))

    async def note_failback(
        self, record: TopicRecord, index: int, part: FailbackPartition | None
    ) -> None:
        """How far one partition is on its way to be a copy."""
        changing = self._catalog.change(
            record.name, lambda known: failback.noted(record, known, index, part)
        )
        await self._changes.run(changing)

    async def set_aside(self, record: TopicRecord, name: str, starts: list[int]) -> TopicRecord:
        """A topic that has the partitions of another, which begin there; the same if it is there.

        It keeps what is stored in it for good.
        """
        partitions = [
            msgspec.structs.replace(one, start_offset=start)
            for one, start in zip(self._partition_infos(record), starts, strict=True)
        ]
        settings = msgspec.structs.replace(
            record.settings, retention=Retention(age=None), durability=Durability.FSYNC
        )
        info = msgspec.structs.replace(
            _topic_info(record, partitions), name=name, number=1, settings=settings
        )
        await self.restore(info, f"failback of {record.folder}")
        return self._catalog.get(name)

    async def finish_failback(self, record: TopicRecord) -> None:
        """Let a topic be a copy, whose partitions have nothing any more that the source does not."""
        changing = self._catalog.change(record.name, lambda known: failback.finished(record, known))
        changed = await self._changes.run(changing)
        self._on_split()
        logger.warning("topic is a copy again", topic=record.name, diverged_to=changed.diverged_to)

    async def fence(self, name: str, moved_to: str) -> TopicInfo:
        """Let a topic take and deliver nothing more, because its copy elsewhere goes on."""
        require_users_own(name)
        record = await self._changes.run(self._catalog.fence(name, moved_to))
        self._on_split()
        logger.info("topic fenced", topic=name, moved_to=moved_to)
        return await self._describe(record)

    async def finish_restore(self, name: str) -> None:
        """All messages of the backup are there."""
        if self._catalog.get(name).is_restoring:
            await self._changes.run(self._catalog.finish_restore(name))
            logger.info("topic restored", topic=name)

    async def internal(self, name: str, partitions: int = 1) -> TopicRecord:
        """One of the broker's own topics, made if need be."""
        with contextlib.suppress(TopicExists):
            return await self._changes.run(self._catalog.create_internal(name, partitions))
        return self._catalog.get(name)

    async def alter(self, name: str, changes: dict[str, Any]) -> TopicInfo:
        self._catalog.get(name).require_writable()
        record = await self._changes.run(self._alter(name, changes))
        return await self._describe(record)

    async def _alter(self, name: str, changes: dict[str, Any]) -> TopicRecord:
        record = await self._catalog.alter(name, changes)
        self._partitions.reconfigure(record)
        logger.info("topic altered", topic=name, changes=sorted(changes))
        return record

    async def split(self, name: str, index: int, layout: int) -> TopicInfo:
        """Let a partition give half of its range to a new one, unless it has since ``layout``."""
        require_users_own(name)
        self._catalog.get(name).require_writable()
        record = await self._changes.run(self._split(name, index, layout))
        return _topic_info(record, self._partition_infos(record))

    async def _split(self, name: str, index: int, layout: int) -> TopicRecord:
        record, split, is_new = await self._splitter.split(name, index, layout)
        if is_new:
            self._partitions.reconfigure(record)
            self._on_split()
            logger.info(
                "partition split",
                topic=name,
                partition=index,
                child=split.child,
                offset=split.offset,
                layout=split.layout,
            )
        return record

    async def delete(self, name: str) -> None:
        self._catalog.get(name)
        require_users_own(name)
        await self._changes.run(self._delete(name))

    async def _delete(self, name: str) -> None:
        record = await self._catalog.delete(name)
        self._traffic.topics.forget(name)
        await self._remove_data(record)
        logger.info("topic deleted", topic=name)

    async def finish_deletions(self) -> None:
        """Remove the data of deleted topics that a stop has left behind."""
        for record in await self._catalog.deleted():
            await self._remove_data(record)

    async def _remove_data(self, record: TopicRecord) -> None:
        """What cannot be removed now is removed at the next start: its tombstone stays till then."""
        try:
            await self._partitions.remove(record)
        except OSError as error:
            logger.error("data of a deleted topic remains", topic=record.name, error=str(error))
            return
        await self._catalog.forget(record)

    # ------------------------------------------------------------------ descriptions

    async def describe(self, name: str, *, extents: bool = True) -> TopicInfo:
        """A topic; with ``extents`` also where each of its partitions begins and ends."""
        record = self._catalog.get(name)
        if not extents:
            return _topic_info(record, self._partition_infos(record))
        info = await self._describe(record)
        if self._remote is not None and any(one.bytes is None for one in info.partitions):
            known = {one.index: one for one in await self._remote.extents(name)}
            info.partitions = [
                one if one.bytes is not None else known.get(one.index, one)
                for one in info.partitions
            ]
        return info

    async def describe_here(self, name: str) -> TopicInfo:
        """A topic with the extents of those partitions that this node leads."""
        return await self._describe(self._catalog.get(name))

    def infos(self) -> list[TopicInfo]:
        """Every topic, without the extent of its partitions."""
        records = sorted(self._catalog.topics(), key=lambda record: record.name)
        return [_topic_info(record, self._partition_infos(record)) for record in records]

    @property
    def count(self) -> int:
        return len(self._catalog.topics())

    @property
    def names(self) -> set[str]:
        return {record.name for record in self._catalog.topics()}

    def known_leader(self, topic: str, index: int) -> str | None:
        """Where a partition is led, as far as is known."""
        return self._partitions.placement.leader(self._catalog.get(topic), index)

    def leader_of(self, topic: str, index: int) -> str | None:
        """The node that leads a partition; ``None``: this one. ``NotLeader`` if nobody does."""
        record, placement = self._catalog.get(topic), self._partitions.placement
        if index >= len(record.first_hashes) or placement.leads(record, index):
            return None
        address = placement.leader(record, index)
        if address is None:
            raise NotLeader(f"partition {index} of {topic!r} has no leader now")
        return address

    def _partition_infos(self, record: TopicRecord) -> list[PartitionInfo]:
        origins = {split.child: (split.parent, split.offset) for split in record.splits}
        infos = []
        for index, first_hash in enumerate(record.first_hashes):
            parent, offset = origins.get(index, (None, None))
            infos.append(
                PartitionInfo(
                    index=index,
                    first_hash=first_hash,
                    leader=self._partitions.placement.leader(record, index),
                    in_sync=self._partitions.placement.in_sync(record, index),
                    parent=parent,
                    parent_offset=offset,
                )
            )
        return infos

    async def _describe(self, record: TopicRecord) -> TopicInfo:
        """A topic with the extent of each partition; without it where that is not to be had now."""
        turns = asyncio.Semaphore(_OPENED_AT_ONCE)

        async def described(info: PartitionInfo) -> PartitionInfo:
            if self._partitions.is_unused(record, info.index):
                return _with_extent(info, 0, 0, 0)
            async with turns:
                try:
                    partition = await self._partitions.get(record, info.index)
                except (ShuttingDown, TopicNotFound):
                    raise
                except NotLeader:
                    return info
                except QuiverError as error:
                    logger.error("partition cannot be opened", topic=record.name, error=str(error))
                    return info
                info.dedup_forgotten = partition.window.forgotten
                info.has_open_transactions = partition.has_open_transactions
                info.open_transactions = [
                    OpenTransactionInfo(
                        transaction=one.id, since_us=one.time, first_offset=one.first
                    )
                    for one in partition.first_open_transactions
                ]
                log = partition.committed
                return _with_extent(info, log.start_offset, log.next_offset, log.size)

        infos = await asyncio.gather(*map(described, self._partition_infos(record)))
        return _topic_info(record, [*infos])


def _with_extent(
    info: PartitionInfo, start_offset: int, next_offset: int, size: int
) -> PartitionInfo:
    return msgspec.structs.replace(
        info, start_offset=start_offset, next_offset=next_offset, bytes=size
    )


def _topic_info(record: TopicRecord, partitions: list[PartitionInfo]) -> TopicInfo:
    return TopicInfo(
        name=record.name,
        number=record.number,
        layout=record.layout,
        settings=record.settings,
        created_us=record.created_us,
        partitions=partitions,
        restored_from=record.restored_from,
        is_restoring=record.is_restoring,
        origin=record.origin,
        moved_to=record.moved_to,
        promoted_from=record.promoted_from,
        promotions=record.promotions,
        diverged_to=record.diverged_to,
    )
