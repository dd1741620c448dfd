"""The catalog of topics in the metadata store: settings and layouts.

A topic's folder carries its number, so data of a deleted topic never appears in a new topic of the
same name. A deletion leaves a tombstone until the data is removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from quiver.broker.topics.internal_topics import SETTINGS
from quiver.broker.topics.registry import (
    Also,
    OnChange,
    RecordKind,
    Registry,
    changed_settings,
    ignore_change,
)
from quiver.cluster.metadata.store import Delete, Expect, MetadataStore, Put
from quiver.errors import (
    InvalidRequest,
    InvalidSetting,
    ReadOnlyTopic,
    TopicExists,
    TopicNotFound,
)
from quiver.model.clock import Clock
from quiver.model.ids import Offset
from quiver.model.key_hash import even_ranges
from quiver.model.layout import Split, changed_in, middle_of, origin_of, split_after
from quiver.model.mirror.failback import Cut, Failback
from quiver.model.mirror.origin import Origin
from quiver.model.topic import PARTITIONS_MAX, TopicSettings, topic_name

DELETED = "deleted-topics/"
_KIND = RecordKind(
    noun="topic",
    prefix="topics/",
    numbers="numbers/topic",
    not_found=TopicNotFound,
    exists=TopicExists,
)


class TopicRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the metadata store holds of a topic. ``first_hashes[i]`` begins partition ``i``'s range."""

    name: str
    number: int
    layout: int
    settings: TopicSettings
    created_us: int
    first_hashes: list[int]
    splits: list[Split] = []
    """How partitions came about that were not there from the beginning, in order."""
    first_offsets: list[int] = []
    """Where the log of each partition begins if it is not there yet; 0 where none is given."""
    restored_from: str = ""
    """The backup that it was restored from, if it was."""
    is_restoring: bool = False
    """Whether messages of that backup are still to come. Nobody else stores any until then."""
    origin: Origin | None = None
    """Of a mirrored topic: where its messages come from. Nobody else stores any."""
    promoted_from: Origin | None = None
    """Of a topic that was mirrored once: where its first messages came from."""
    moved_to: str = ""
    """The cluster whose copy was promoted in its place. Nobody stores any messages more."""
    promotions: int = 0
    """How many copies were promoted on the way from the first topic of that name to this one."""
    failback: Failback | None = None
    """Of a topic that is about to be a copy of its former copy: how far that is."""
    diverged_to: str = ""
    """The topic that has what this one had beyond its source when it became a copy again."""
    cuts: int = 0
    """How often its logs were cut for that."""

    @property
    def is_read_only(self) -> bool:
        """Whether nobody may publish to it or change it here."""
        return self.source is not None or bool(self.moved_to)

    @property
    def source(self) -> Origin | None:
        """Where its messages come from, or will."""
        return self.origin if self.failback is None else self.failback.origin

    def require_writable(self) -> None:
        """``ReadOnlyTopic`` if its messages come from another cluster, or go to one."""
        if self.failback is not None:
            raise ReadOnlyTopic(
                f"topic {self.name!r} becomes a copy of {self.failback.origin}: publish there",
                topic=self.name,
                mirror=self.failback.origin.mirror,
                source=self.failback.origin.topic,
            )
        if self.origin is not None:
            raise ReadOnlyTopic(
                f"topic {self.name!r} is a copy of {self.origin}: publish there, or promote it",
                topic=self.name,
                mirror=self.origin.mirror,
                source=self.origin.topic,
            )
        if self.moved_to:
            raise ReadOnlyTopic(
                f"topic {self.name!r} was moved to {self.moved_to}: publish there",
                topic=self.name,
                moved_to=self.moved_to,
            )

    def cut_of(self, index: int) -> Cut | None:
        """What is to be dropped of a partition's log now, if anything."""
        return None if self.failback is None else self.failback.cut_of(index)

    def first_offset(self, index: int) -> Offset:
        return Offset(self.first_offsets[index] if index < len(self.first_offsets) else 0)

    @property
    def folder(self) -> str:
        return f"{self.name}@{self.number}"

    def changed_in(self, index: int) -> int:
        """The layout since which a partition has had the range that it has now."""
        return changed_in(self.splits, index)

    def origin_of(self, index: int) -> Split | None:
        """The split that a partition came from, if it was not there from the beginning."""
        return origin_of(self.splits, index)

    def with_split(self, index: int, offset: Offset) -> TopicRecord:
        """The topic once a partition has given half of its range to a new one."""
        child = len(self.first_hashes)
        if child >= PARTITIONS_MAX:
            raise InvalidRequest(
                f"topic {self.name!r} already has {child:,} partitions, the most allowed"
            )
        split = Split(parent=index, child=child, offset=offset, layout=self.layout + 1)
        return msgspec.structs.replace(
            self,
            layout=split.layout,
            first_hashes=[*self.first_hashes, middle_of(self.first_hashes, index)],
            splits=[*self.splits, split],
        )


class RestoredTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic as a backup or another cluster has it."""

    name: str
    number: int
    layout: int
    settings: TopicSettings
    first_hashes: list[int]
    first_offsets: list[int]
    splits: list[Split]
    backup: str = ""
    origin: Origin | None = None
    """Of a copy; a backup has none."""


class TopicHooks(Protocol):
    """What else is written to the metadata store when a topic changes, in the same commit."""

    def on_create(self, record: TopicRecord) -> Sequence[Put]: ...

    async def on_alter(
        self, old: TopicRecord, new: TopicRecord
    ) -> Sequence[tuple[Expect, Put | None]]: ...

    async def on_split(
        self, new: TopicRecord, index: int, term: int
    ) -> Sequence[tuple[Expect, Put | None]]:
        """``NotLeader`` unless this node still leads the partition under the epoch ``term``."""

    def on_delete(self, record: TopicRecord) -> Sequence[Put | Delete]: ...


class NoTopicHooks:
    """A single node writes nothing else."""

    def on_create(self, _record: TopicRecord) -> Sequence[Put]:
        return ()

    async def on_alter(
        self, _old: TopicRecord, _new: TopicRecord
    ) -> Sequence[tuple[Expect, Put | None]]:
        return ()

    async def on_split(
        self, _new: TopicRecord, _index: int, _term: int
    ) -> Sequence[tuple[Expect, Put | None]]:
        return ()

    def on_delete(self, _record: TopicRecord) -> Sequence[Put | Delete]:
        return ()


class TopicCatalog:
    """``on_change`` is called when another node has made, changed or deleted a topic."""

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        hooks: TopicHooks | None = None,
        on_change: OnChange[TopicRecord] = ignore_change,
    ) -> None:
        self._store = store
        self._clock = clock
        self.hooks = hooks or NoTopicHooks()
        self.registry = self._registry = Registry(store, _KIND, TopicRecord, on_change)
        self.load = self._registry.load
        self.get = self._registry.get
        self.topics = self._registry.all
        self.holds = self._registry.holds
        self.numbered = self._registry.numbered
        self.named = self._registry.named
        self.change = self._registry.change

    @property
    def version(self) -> int:
        """Grows with every change."""
        return self._registry.version

    async def create(self, name: str, settings: TopicSettings) -> TopicRecord:
        """Add a topic; ``TopicExists`` if there is one of this name."""
        return await self._create(topic_name(name), settings)

    async def create_internal(self, name: str, partitions: int = 1) -> TopicRecord:
        """Add one of the broker's own topics."""
        settings = msgspec.structs.replace(SETTINGS[name], partitions=partitions)
        return await self._create(name, settings)

    async def _create(self, name: str, settings: TopicSettings) -> TopicRecord:
        return await self._registry.create(
            name,
            lambda number: TopicRecord(
                name=name,
                number=number,
                layout=1,
                settings=settings,
                created_us=self._clock.time_us(),
                first_hashes=even_ranges(settings.partitions),
            ),
            self.hooks.on_create,
        )

    async def restore(self, restored: RestoredTopic) -> TopicRecord:
        """Add a topic of a backup or a mirror, with its number if no topic here ever had that."""
        name = topic_name(restored.name)
        return await self._registry.create(
            name,
            lambda number: TopicRecord(
                name=name,
                number=number,
                layout=restored.layout,
                settings=restored.settings,
                created_us=self._clock.time_us(),
                first_hashes=restored.first_hashes,
                splits=restored.splits,
                first_offsets=restored.first_offsets,
                restored_from=restored.backup,
                is_restoring=restored.origin is None,
                origin=restored.origin,
            ),
            self.hooks.on_create,
            wanted=restored.number,
        )

    async def finish_restore(self, name: str) -> TopicRecord:
        """All messages of the backup are there: the topic is like any other from now on."""
        return await self._registry.change(
            name, lambda record: msgspec.structs.replace(record, is_restoring=False)
        )

    async def promote(self, name: str) -> TopicRecord:
        """Let a copy be a topic of this cluster from now on."""

        def promoted(record: TopicRecord) -> TopicRecord:
            if record.source is None:
                return record
            return msgspec.structs.replace(
                record,
                origin=None,
                failback=None,
                moved_to="" if record.failback is not None else record.moved_to,
                promoted_from=record.source,
                promotions=record.source.promotions + 1,
            )

        return await self._registry.change(name, promoted)

    async def fence(self, name: str, moved_to: str) -> TopicRecord:
        """Let a topic take nothing more, because its copy elsewhere goes on; empty: let it again."""
        return await self._registry.change(
            name, lambda record: msgspec.structs.replace(record, moved_to=moved_to)
        )

    async def alter(self, name: str, changes: dict[str, Any]) -> TopicRecord:
        """Change some of a topic's settings; the others stay."""

        def altered(record: TopicRecord) -> TopicRecord:
            settings = changed_settings(record.settings, changes)
            if settings.partitions != record.settings.partitions:
                raise InvalidSetting(
                    "partitions cannot be changed: split a partition instead",
                    setting="partitions",
                )
            return msgspec.structs.replace(record, settings=settings)

        return await self._registry.change(name, altered, self.hooks.on_alter)

    async def split(
        self, record: TopicRecord, index: int, offset: Offset, also: Also[TopicRecord]
    ) -> TopicRecord:
        """Let a partition give half of its range to a new one, from an offset of its log on.

        ``record`` is the topic before. A commit that was made though its answer got lost is found.
        """

        def split(known: TopicRecord) -> TopicRecord:
            if known.number != record.number:
                raise TopicNotFound(f"topic {record.name!r} was deleted", topic=record.name)
            is_made = split_after(known.splits, index, record.layout) is not None
            return known if is_made else known.with_split(index, offset)

        return await self._registry.change(record.name, split, also)

    async def touch(self, name: str) -> TopicRecord:
        """The topic as it is in the store; no change that is still on its way to it succeeds."""
        return await self._registry.change(name, lambda record: record)

    async def delete(self, name: str) -> TopicRecord:
        """Remove a topic from the catalog; once its data is gone too, ``forget`` it."""
        return await self._registry.delete(
            name,
            lambda record: [
                Put(DELETED + str(record.number), _encode(record)),
                *self.hooks.on_delete(record),
            ],
        )

    async def deleted(self) -> list[TopicRecord]:
        """Topics that were deleted and whose data may still be there."""
        return [_decoder.decode(entry.value) for entry in (await self._store.list(DELETED)).entries]

    async def forget(self, record: TopicRecord) -> None:
        """The data of a deleted topic is gone."""
        await self._store.commit([], [Delete(DELETED + str(record.number))])


_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[TopicRecord] = msgspec.msgpack.Decoder(TopicRecord)
