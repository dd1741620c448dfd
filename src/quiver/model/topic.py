"""A topic: its name and its settings."""

from __future__ import annotations

import re
from datetime import timedelta
from enum import StrEnum

import msgspec

from quiver.errors import InvalidSetting
from quiver.model.ids import TopicName
from quiver.model.units import seconds, size_bytes

PARTITIONS_MAX = 4096
REPLICAS_MAX = 15
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,200}")


def within(setting: str, value: float | None, least: float, most: float) -> None:
    if value is not None and not least <= value <= most:
        raise InvalidSetting(
            f"{setting} must be between {least:,} and {most:,}, not {value:,}", setting=setting
        )


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
    """``min_in_sync`` replicas."""
    ALL = "all"
    """All replicas of the partition."""


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long messages are kept. A message is deleted as soon as one of the limits says so.

    ``bytes`` and ``messages`` are limits for each partition. ``acked`` deletes messages that every
    subscription has acknowledged. ``None`` means no limit. Age and bytes may be text, as in
    ``Retention(age="7d", bytes="10GB")``.
    """

    age: float | str | None = 7 * 86400.0
    bytes: int | str | None = None
    messages: int | None = None
    acked: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.age, str | timedelta):
            msgspec.structs.force_setattr(self, "age", seconds(self.age))
        if isinstance(self.bytes, str):
            msgspec.structs.force_setattr(self, "bytes", size_bytes(self.bytes))
        within("retention.age", self.age_s, 1, 100 * 365 * 86400)
        within("retention.bytes", self.size, 1, 1 << 60)
        within("retention.messages", self.messages, 1, 1 << 60)

    @property
    def age_s(self) -> float | None:
        return None if self.age is None else float(self.age)

    @property
    def size(self) -> int | None:
        return None if self.bytes is None else int(self.bytes)


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a topic. Sizes are bytes; the names of times end in their unit."""

    partitions: int = 1
    durability: Durability = Durability.FSYNC
    sync_interval_ms: int = 50
    retention: Retention = Retention()
    compression: Compression = Compression.NONE
    """The default of producers."""
    message_bytes_max: int = 1 << 20
    """The size of the largest message: payload, key and headers."""
    acks: Acks = Acks.QUORUM
    segment_bytes: int = 256 << 20
    segment_age_s: int = 86400
    dedup_window: float | str = 300.0
    """Time within which a message with the same ``dedup_id`` is not stored again; 0: off."""
    replicas: int | None = None
    """Number of replicas of each partition; ``None``: 3, or one for each node if there are fewer."""
    min_in_sync: int | None = None
    """Number of in-sync replicas that must have a message before it is confirmed; ``None``: more than
    half."""
    allow_data_loss: bool = False
    """Whether a replica that is not in sync may become leader if no other is left. Confirmed messages
    may be lost."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "dedup_window", float(seconds(self.dedup_window)))
        within("dedup_window", float(self.dedup_window), 0, 86400)
        within("partitions", self.partitions, 1, PARTITIONS_MAX)
        within("sync_interval_ms", self.sync_interval_ms, 1, 60_000)
        within("message_bytes_max", self.message_bytes_max, 1, 32 << 20)
        within("segment_bytes", self.segment_bytes, 1 << 20, 1 << 36)
        within("segment_age_s", self.segment_age_s, 1, 10 * 365 * 86400)
        within("replicas", self.replicas, 1, REPLICAS_MAX)
        within("min_in_sync", self.min_in_sync, 1, self.replicas or REPLICAS_MAX)

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
