"""What a backup reuses of an earlier one, and what a restore takes of a backup. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

import msgspec
from crc32c import crc32c

from quiver.backup.manifest import (
    Chunk,
    LastEntry,
    Manifest,
    SubscriptionBackup,
    TopicBackup,
)
from quiver.model.batch import StoredBatch
from quiver.model.builder import encode_record_batch
from quiver.model.envelope import BATCH_COUNT_MAX, is_hidden, seal_gap, store_batch
from quiver.model.ids import Offset
from quiver.model.topic import is_internal
from quiver.protocol import SubscriptionInfo, TopicInfo


def last_entry(entry: StoredBatch) -> LastEntry:
    return LastEntry(
        base_offset=entry.base_offset,
        count=entry.count,
        append_time=entry.append_time,
        checksum=crc32c(entry.body),
    )


def without_gaps(entries: Iterable[StoredBatch], offset: int) -> list[StoredBatch]:
    """The entries, and one in the place of offsets that have no message, from ``offset`` on."""
    whole: list[StoredBatch] = []
    for entry in entries:
        while offset < entry.base_offset:
            count = min(entry.base_offset - offset, BATCH_COUNT_MAX)
            whole.append(
                store_batch(
                    seal_gap(count),
                    base_offset=Offset(offset),
                    epoch=entry.epoch,
                    append_time=entry.append_time,
                    durable_offset=entry.durable_offset,
                )
            )
            offset += count
        whole.append(entry)
        offset = entry.next_offset
    return whole


def earlier_chunks(earlier: Manifest | None, info: TopicInfo, partition: int) -> list[Chunk]:
    """What an earlier backup has of a partition of the very same topic."""
    for topic in () if earlier is None else earlier.topics:
        same = topic.identity == (info.name, info.number, info.created_us)
        if same and partition < len(topic.partitions):
            return topic.partitions[partition].chunks
    return []


def reusable(chunks: Sequence[Chunk], start: int, end: int) -> list[Chunk]:
    """Of the chunks of an earlier backup, those that are still of use, if the log still has them."""
    return [one for one in chunks if one.next_offset > start and one.next_offset <= end]


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """How far a restore goes."""

    time_us: int | None = None
    """Messages that were stored later are left out."""
    offsets: dict[tuple[str, int], int] = {}
    """By topic and partition: messages from this offset on are left out."""

    def name_of(self, backup: str) -> str:
        """The name of what is restored: only the same thing continues an interrupted restore."""
        if self.time_us is None and not self.offsets:
            return backup
        ends = [f"{topic}/{part}={end}" for (topic, part), end in sorted(self.offsets.items())]
        return " until ".join(
            [backup, *([] if self.time_us is None else [str(self.time_us)]), *ends]
        )

    def is_beyond(self, chunk: Chunk, end: int | None) -> bool:
        """Whether nothing of a chunk is wanted."""
        too_late = self.time_us is not None and chunk.first_time > self.time_us
        return too_late or (end is not None and chunk.base_offset >= end)

    def is_within(self, chunk: Chunk, end: int | None) -> bool:
        """Whether all of a chunk is wanted."""
        in_time = self.time_us is None or chunk.last.append_time <= self.time_us
        return in_time and (end is None or chunk.next_offset <= end)


def cut(entries: Iterable[StoredBatch], limit: Limit, end: int | None) -> list[StoredBatch]:
    """The entries, or parts of them, that are within the limit."""
    kept = []
    for entry in entries:
        if limit.time_us is not None and entry.append_time > limit.time_us:
            break
        if end is not None and entry.base_offset >= end:
            break
        if end is not None and entry.next_offset > end and is_hidden(entry):
            break
        if end is not None and entry.next_offset > end:
            kept.append(_first_of(entry, end - entry.base_offset))
            break
        kept.append(entry)
    return kept


def _first_of(entry: StoredBatch, count: int) -> StoredBatch:
    return store_batch(
        encode_record_batch(entry.record_batch().slice(0, count)),
        base_offset=entry.base_offset,
        epoch=entry.epoch,
        append_time=entry.append_time,
        durable_offset=entry.durable_offset,
    )


# ---------------------------------------------------------------------- what is restored


def chosen_topics(manifest: Manifest, patterns: Sequence[str]) -> list[TopicBackup]:
    """Topics in the order of their numbers, so that each can have its own again."""
    chosen = [
        one
        for one in manifest.topics
        if not patterns or any(fnmatchcase(one.info.name, pattern) for pattern in patterns)
    ]
    return sorted(chosen, key=lambda one: one.info.number)


def chosen_subscriptions(
    manifest: Manifest, topics: Iterable[str]
) -> tuple[list[SubscriptionBackup], list[str]]:
    """Subscriptions that read a chosen topic, and the names of those that also need another one."""
    known = set(topics)
    chosen, left_out = [], []
    for one in sorted(manifest.subscriptions, key=lambda one: one.info.number):
        if not any(covers(one.info, topic) for topic in known):
            continue
        named = {topic for topic in one.info.settings.topics if "*" not in topic}
        if all(topic in known or is_internal(topic) for topic in named):
            chosen.append(one)
        else:
            left_out.append(one.info.name)
    return chosen, left_out


def covers(info: SubscriptionInfo, topic: str) -> bool:
    """Whether a subscription reads a topic; no pattern leads it to its own dead letters."""
    letters = info.settings.dead_letter or f"{info.name}.dlq"
    return topic in info.settings.topics or (
        topic != letters
        and any("*" in wanted and fnmatchcase(topic, wanted) for wanted in info.settings.topics)
    )


def restored_info(topic: TopicBackup, ends: Sequence[int]) -> TopicInfo:
    """The description to create a topic by, whose partitions will end at these offsets.

    A partition waits for its parent up to the offset of the split, so that must be one that the
    parent will have.
    """
    partitions = [
        msgspec.structs.replace(
            info,
            leader=None,
            in_sync=[],
            start_offset=part.start_offset,
            next_offset=None,
            bytes=None,
            parent_offset=(
                None
                if info.parent is None or info.parent_offset is None
                else min(info.parent_offset, ends[info.parent])
            ),
        )
        for info, part in zip(topic.info.partitions, topic.partitions, strict=True)
    ]
    return msgspec.structs.replace(
        topic.info, partitions=partitions, restored_from="", is_restoring=False
    )
