"""A topic: its name and everything that can be set about it."""

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
    """When a stored message counts as stored."""

    FSYNC = "fsync"
    """After fdatasync; one sync serves all publishes that wait."""
    INTERVAL = "interval"
    """After the write; synced every ``sync_interval_ms``."""
    OS = "os"
    """After the write; the operating system syncs when it likes."""


class Compression(StrEnum):
    """How the producer packs the body of a batch."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Acks(StrEnum):
    """Whom a publish waits for."""

    NONE = "none"
    """Nobody: it is sent and forgotten."""
    LEADER = "leader"
    QUORUM = "quorum"
    """As many in-sync replicas as the topic's minimum."""
    ALL = "all"


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long messages are kept; the limits hold together, and the first one reached counts.

    ``acked`` drops what every subscription has acknowledged. ``None`` means no such limit. Age and
    bytes may be written as people do, ``Retention(age="7d", bytes="10GB")``; they are kept as
    seconds and bytes.
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
    """Everything that can be set about a topic. Sizes are bytes; times carry their unit."""

    partitions: int = 1
    durability: Durability = Durability.FSYNC
    sync_interval_ms: int = 50
    retention: Retention = Retention()
    compression: Compression = Compression.NONE
    """What producers use unless told otherwise."""
    message_bytes_max: int = 1 << 20
    """The largest message, payload with key and headers."""
    acks: Acks = Acks.QUORUM
    segment_bytes: int = 256 << 20
    segment_age_s: int = 86400
    dedup_window: float | str = 300.0
    """For so long, a message with the ``dedup_id`` of another is not stored again; 0: not at all."""
    replicas: int | None = None
    """On how many nodes each partition is kept; ``None``: 3, or as many as there are."""
    min_in_sync: int | None = None
    """How many of them must have a message before it counts; ``None``: more than half."""
    allow_data_loss: bool = False
    """Whether a node may lead that lacks confirmed messages when no other is left."""

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
    """Check a topic's name that a user chose."""
    return TopicName(checked_name(name, "topic"))


def checked_name(name: str, what: str) -> str:
    """Check the name of a topic or subscription: it is used in paths and addresses."""
    if is_internal(readable_name(name, what)):
        raise InvalidSetting(f"{_shown(name)} is reserved: names that begin with '__' are internal")
    return name


def is_internal(name: str) -> bool:
    """Whether it is the name of one of the broker's own topics."""
    return name.startswith("__")


def readable_name(name: str, what: str) -> str:
    """Check the name of something that need not be the user's own."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in {".", ".."}:
        raise InvalidSetting(
            f"{_shown(name)} is not a {what} name; use 1 to 200 letters, digits, '.', '_' or '-'",
            setting="name",
        )
    return name


def _shown(name: object) -> str:
    text = repr(name)
    return text if len(text) <= 80 else text[:77] + "…"
