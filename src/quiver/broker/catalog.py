"""The topics there are: their settings and layouts, kept in the metadata store.

The store is the truth and this is its copy in memory: a change that is cut off in the middle leaves
the two apart, so whoever asks for one sees to it that it runs to its end. A topic's number is never
used again, and its folder carries it, so that a deleted topic's data can not turn up in a new one of
the same name. A deletion leaves a tombstone until the data is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from quiver.cluster.metadata import Delete, Expect, MetadataStore, Put
from quiver.errors import (
    InvalidSetting,
    MetadataConflict,
    MetadataError,
    TopicExists,
    TopicNotFound,
)
from quiver.model.clock import Clock
from quiver.model.key_hash import even_ranges
from quiver.model.topic import Retention, TopicSettings, topic_name

TOPICS = "topics/"
DELETED = "deleted-topics/"
NUMBERS = "numbers/topic"
_ATTEMPTS = 100


class TopicRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the metadata store holds of a topic. ``first_hashes[i]`` begins partition ``i``'s range."""

    name: str
    number: int
    layout: int
    settings: TopicSettings
    created_us: int
    first_hashes: list[int]

    @property
    def folder(self) -> str:
        return f"{self.name}@{self.number}"


class Catalog:
    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._topics: dict[str, TopicRecord] = {}
        self._revisions: dict[str, int] = {}
        self._turn = asyncio.Lock()

    async def load(self) -> None:
        """Read every topic from the store."""
        for entry in (await self._store.list(TOPICS)).entries:
            self._keep(_decoder.decode(entry.value), entry.revision)

    def get(self, name: str) -> TopicRecord:
        record = self._topics.get(name)
        if record is None:
            raise TopicNotFound(f"there is no topic {name[:200]!r}", topic=name[:200])
        return record

    def topics(self) -> Iterable[TopicRecord]:
        return self._topics.values()

    def holds(self, record: TopicRecord) -> bool:
        """Whether this very topic is still there, by whatever settings."""
        known = self._topics.get(record.name)
        return known is not None and known.number == record.number

    async def create(self, name: str, settings: TopicSettings) -> TopicRecord:
        """Add a topic; ``TopicExists`` if there is one of this name."""
        topic_name(name)
        async with self._turn:
            return await self._create(name, settings)

    async def _create(self, name: str, settings: TopicSettings) -> TopicRecord:
        if name in self._topics:
            raise TopicExists(f"there is a topic {name!r} already", topic=name)
        for _ in range(_ATTEMPTS):
            counter = await self._store.get(NUMBERS)
            number = (int(counter.value) if counter else 0) + 1
            record = TopicRecord(
                name=name,
                number=number,
                layout=1,
                settings=settings,
                created_us=self._clock.time_us(),
                first_hashes=even_ranges(settings.partitions),
            )
            try:
                revision = await self._commit(
                    name,
                    [Expect(TOPICS + name, 0), Expect(NUMBERS, counter.revision if counter else 0)],
                    [Put(TOPICS + name, _encode(record)), Put(NUMBERS, str(number).encode())],
                )
            except MetadataConflict as conflict:
                if conflict.details.get("key") == TOPICS + name:
                    raise TopicExists(f"there is a topic {name!r} already", topic=name) from None
                continue
            self._keep(record, revision)
            return record
        raise MetadataConflict(f"{NUMBERS} changed {_ATTEMPTS} times while topic {name!r} was made")

    async def alter(self, name: str, changes: dict[str, Any]) -> TopicRecord:
        """Change some of a topic's settings; the others stay."""
        async with self._turn:
            return await self._alter(name, changes)

    async def _alter(self, name: str, changes: dict[str, Any]) -> TopicRecord:
        record = self.get(name)
        settings = changed_settings(record.settings, changes)
        if settings.partitions != record.settings.partitions:
            raise InvalidSetting(
                "the number of partitions of a topic cannot be set anew", setting="partitions"
            )
        altered = msgspec.structs.replace(record, settings=settings)
        revision = await self._commit(
            name,
            [Expect(TOPICS + name, self._revisions[name])],
            [Put(TOPICS + name, _encode(altered))],
        )
        self._keep(altered, revision)
        return altered

    async def delete(self, name: str) -> TopicRecord:
        """Remove a topic from the catalog; once its data is gone too, ``forget`` it."""
        async with self._turn:
            record = self.get(name)
            await self._commit(
                name,
                [Expect(TOPICS + name, self._revisions[name])],
                [Delete(TOPICS + name), Put(DELETED + str(record.number), _encode(record))],
            )
            del self._topics[name], self._revisions[name]
            return record

    async def deleted(self) -> list[TopicRecord]:
        """Topics that were deleted and whose data may still be there."""
        return [_decoder.decode(entry.value) for entry in (await self._store.list(DELETED)).entries]

    async def forget(self, record: TopicRecord) -> None:
        """The data of a deleted topic is gone."""
        await self._store.commit([], [Delete(DELETED + str(record.number))])

    async def _commit(
        self, name: str, expects: Sequence[Expect], changes: Sequence[Put | Delete]
    ) -> int:
        """Commit a change of one topic; if that fails, see what the store has of it."""
        try:
            return await self._store.commit(expects, changes)
        except MetadataError:
            entry = await self._store.get(TOPICS + name)
            if entry is None:
                self._topics.pop(name, None)
                self._revisions.pop(name, None)
            else:
                self._keep(_decoder.decode(entry.value), entry.revision)
            raise

    def _keep(self, record: TopicRecord, revision: int) -> None:
        self._topics[record.name] = record
        self._revisions[record.name] = revision


def changed_settings(settings: TopicSettings, changes: dict[str, Any]) -> TopicSettings:
    """Settings with some of them changed; ``retention`` may be given in part."""
    unknown = changes.keys() - set(TopicSettings.__struct_fields__)
    if unknown:
        known = ", ".join(TopicSettings.__struct_fields__)
        raise InvalidSetting(f"there is no setting {_one_of(unknown)}; the settings are {known}")
    merged = msgspec.to_builtins(settings) | changes
    retention = changes.get("retention")
    if isinstance(retention, dict):
        unknown = retention.keys() - set(Retention.__struct_fields__)
        if unknown:
            raise InvalidSetting(f"retention has no setting {_one_of(unknown)}")
        merged["retention"] = msgspec.to_builtins(settings.retention) | retention
    elif isinstance(retention, Retention):
        merged["retention"] = msgspec.to_builtins(retention)
    try:
        return msgspec.convert(merged, TopicSettings)
    except msgspec.ValidationError as error:
        raise InvalidSetting(str(error)) from error


def _one_of(names: Iterable[Any]) -> str:
    return repr(min(str(name) for name in names)[:80])


_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[TopicRecord] = msgspec.msgpack.Decoder(TopicRecord)
