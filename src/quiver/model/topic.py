"""A topic: its name and its settings.

The fields are the only definition of these settings: see ``quiver.model.setting``.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated

import msgspec

from quiver.errors import InvalidSetting
from quiver.model.ids import TopicName
from quiver.model.setting import Unit, check_fields, setting, setting_of

PARTITIONS_MAX = 4096
REPLICAS_MAX = 15
NAME_PATTERN = r"^[A-Za-z0-9_.\-]{1,200}$"
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_DAY_S = 86_400
_YEAR_S = 365 * _DAY_S


class Durability(StrEnum):
    """When a message counts as stored."""

    FSYNC = "fsync"
    """After a disk sync (fdatasync). One sync serves all waiting publishes."""
    INTERVAL = "interval"
    """After the write. The disk is synced every ``sync_interval_ms``."""
    OS = "os"
    """After the write. The operating system decides when to sync."""


class Compression(StrEnum):
    """Compression of a batch by the producer."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Acks(StrEnum):
    """Which replicas must store a message before it is confirmed."""

    NONE = "none"
    """None: the producer does not wait."""
    LEADER = "leader"
    """The leader."""
    QUORUM = "quorum"
    """All replicas in sync, and these are at least ``min_in_sync``."""
    ALL = "all"
    """All replicas of the partition; a publish fails while one of them is not in sync."""


class Unread(StrEnum):
    """What retention does with messages that a subscription has not finished."""

    KEEP = "keep"
    """Keep them until every subscription has finished them."""
    DROP = "drop"
    """Delete them like all others, scheduled ones too."""


class Overflow(StrEnum):
    """What happens when unread messages reach a limit."""

    REFUSE = "refuse"
    """Publishes are refused until subscriptions have finished enough."""
    DROP = "drop"
    """The oldest are deleted."""


class RetentionScope(StrEnum):
    """What the limits in bytes and messages are limits of."""

    PARTITION = "partition"
    """Each partition."""
    TOPIC = "topic"
    """All partitions of the topic together."""


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long messages are kept. A message is deleted as soon as one of the limits says so.

    ``bytes`` and ``messages`` are limits for each partition, or with ``scope="topic"`` for all
    partitions together. ``acked`` deletes messages that every
    subscription has acknowledged. Where unread messages are kept, these limits delete only messages
    that every subscription has finished, and those whose names begin with ``unread_`` are for the
    others. ``None`` means no limit. Age and bytes may be text, as in
    ``Retention(age="7d", bytes="10GB")``.
    """

    age: Annotated[
        float | str | None,
        setting(
            "Delete messages that are older than this.",
            1,
            100 * _YEAR_S,
            unit=Unit.SECONDS,
            without="no limit",
        ),
    ] = 7.0 * _DAY_S
    bytes: Annotated[
        int | str | None,
        setting(
            "Keep this much of each partition, to one batch, and delete the oldest messages.",
            1,
            1 << 60,
            unit=Unit.BYTES,
            without="no limit",
        ),
    ] = None
    messages: Annotated[
        int | None,
        setting(
            "Keep this many messages of each partition and delete the oldest.",
            1,
            1 << 60,
            without="no limit",
        ),
    ] = None
    acked: Annotated[bool, setting("Delete messages that every subscription has acknowledged.")] = (
        False
    )
    scope: Annotated[
        RetentionScope,
        setting(
            "What bytes and messages are limits of: partition (each of them) or topic (all "
            "partitions together)."
        ),
    ] = RetentionScope.PARTITION

    unread: Annotated[
        Unread | None,
        setting(
            "What happens to messages that a subscription has not finished: keep (until all have "
            "finished them) or drop (delete them like all others).",
            without="keep in queues; elsewhere drop, but nothing before it is due",
        ),
    ] = None
    unread_age: Annotated[
        float | str | None,
        setting(
            "Limit for the age of unread messages that are kept. A scheduled message ages from when "
            "it is due.",
            1,
            100 * _YEAR_S,
            unit=Unit.SECONDS,
            without="no limit",
        ),
    ] = None
    unread_bytes: Annotated[
        int | str | None,
        setting(
            "Limit for the size of each partition from its first unread message on.",
            1,
            1 << 60,
            unit=Unit.BYTES,
            without="no limit",
        ),
    ] = None
    unread_overflow: Annotated[
        Overflow,
        setting(
            "What happens at a limit for unread messages: refuse (publishes) or drop (the oldest "
            "messages)."
        ),
    ] = Overflow.REFUSE

    def __post_init__(self) -> None:
        check_fields(self, "retention")
        if self.unread is Unread.DROP and self.limits_unread:
            raise InvalidSetting(
                "retention.unread_age and retention.unread_bytes are limits for unread messages "
                "that are kept: leave them out, or set retention.unread to keep",
                setting="retention.unread",
            )

    @property
    def limits_unread(self) -> bool:
        return self.unread_age is not None or self.unread_bytes is not None

    @property
    def refuses(self) -> bool:
        """Whether publishes are refused at a limit for unread messages."""
        return self.limits_unread and self.unread_overflow is Overflow.REFUSE

    def keeps_unread(self, *, is_queue: bool) -> bool:
        """Whether a message stays until it is finished. A limit for such messages implies it."""
        if self.unread is None:
            return is_queue or self.limits_unread
        return self.unread is Unread.KEEP

    @property
    def age_s(self) -> float | None:
        return None if self.age is None else float(self.age)

    @property
    def size(self) -> int | None:
        return None if self.bytes is None else int(self.bytes)

    @property
    def unread_age_s(self) -> float | None:
        return None if self.unread_age is None else float(self.unread_age)

    @property
    def unread_size(self) -> int | None:
        return None if self.unread_bytes is None else int(self.unread_bytes)


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a topic. Sizes are bytes; the names of times end in their unit."""

    partitions: Annotated[int, setting("Number of partitions.", 1, PARTITIONS_MAX)] = 1
    durability: Annotated[
        Durability,
        setting(
            "When a message counts as stored: fsync (after a disk sync), interval (after the write; "
            "synced at intervals) or os (after the write)."
        ),
    ] = Durability.FSYNC
    sync_interval_ms: Annotated[
        int,
        setting(
            "Time between disk syncs with durability interval.", 1, 60_000, unit=Unit.MILLISECONDS
        ),
    ] = 50
    retention: Annotated[Retention, setting("How long messages are kept.")] = Retention()
    compression: Annotated[
        Compression,
        setting("Compression of the batches that producers send, unless they choose their own."),
    ] = Compression.NONE
    message_bytes_max: Annotated[
        int,
        setting(
            "Size of the largest message: payload, key and headers.", 1, 32 << 20, unit=Unit.BYTES
        ),
    ] = 1 << 20
    acks: Annotated[
        Acks, setting("Which replicas must store a message before it is confirmed.")
    ] = Acks.QUORUM
    segment_bytes: Annotated[
        int,
        setting(
            "Size at which a partition starts a new segment file.",
            1 << 20,
            1 << 36,
            unit=Unit.BYTES,
        ),
    ] = 256 << 20
    segment_age_s: Annotated[
        int,
        setting(
            "Age at which a partition starts a new segment file.",
            1,
            10 * _YEAR_S,
            unit=Unit.SECONDS,
        ),
    ] = _DAY_S
    dedup_window: Annotated[
        float | str,
        setting(
            "How long a dedup id is remembered. Within this time, a message with the same id is not "
            "stored again. 0 turns deduplication off.",
            0,
            _DAY_S,
            unit=Unit.SECONDS,
        ),
    ] = 300.0
    replicas: Annotated[
        int | None,
        setting(
            "Number of replicas of each partition.",
            1,
            REPLICAS_MAX,
            without="3, or one for each node if there are fewer",
        ),
    ] = None
    min_in_sync: Annotated[
        int | None,
        setting(
            "Number of in-sync replicas that must have a message before it is confirmed. Not above "
            "the number of replicas.",
            1,
            REPLICAS_MAX,
            without="more than half",
        ),
    ] = None
    allow_data_loss: Annotated[
        bool,
        setting(
            "Let a replica that is not in sync become leader if no other is left. Confirmed messages "
            "may be lost."
        ),
    ] = False

    def __post_init__(self) -> None:
        check_fields(self)
        if self.min_in_sync is not None and self.replicas is not None:
            of_replicas = setting_of(TopicSettings, "min_in_sync")
            of_replicas.check_range(self.min_in_sync, most=self.replicas)

    @property
    def dedup_window_us(self) -> int:
        return round(float(self.dedup_window) * 1_000_000)


def topic_name(name: str) -> TopicName:
    """Check the name of a user's topic."""
    return TopicName(checked_name(name, "topic"))


def checked_name(name: str, what: str) -> str:
    """Check the name of a topic or subscription: it is used in paths and addresses."""
    if is_internal(readable_name(name, what)):
        raise InvalidSetting(f"{_shown(name)} is reserved: names that begin with '__' are internal")
    return name


def is_internal(name: str) -> bool:
    """Whether it is the name of an internal topic."""
    return name.startswith("__")


def readable_name(name: str, what: str) -> str:
    """Check a name, which may be internal."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in {".", ".."}:
        raise InvalidSetting(
            f"{_shown(name)} is not a {what} name; use 1 to 200 letters, digits, '.', '_' or '-'",
            setting="name",
        )
    return name


def _shown(name: object) -> str:
    text = repr(name)
    return text if len(text) <= 80 else text[:77] + "…"
