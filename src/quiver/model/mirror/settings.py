"""The settings of a mirror, and the names of its copies."""

from __future__ import annotations

from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated

import msgspec

from quiver.errors import InvalidSetting
from quiver.model.setting import Unit, check_fields, setting
from quiver.model.subscription import TOPIC_PATTERN
from quiver.model.topic import checked_name, is_internal

SAME_NAME = "{topic}"
PATTERNS_MAX = 100
RATE_MAX = 1 << 40


class MirrorCompression(StrEnum):
    """How entries are compressed on their way, whatever their producers did."""

    AUTO = "auto"
    ZSTD = "zstd"
    NONE = "none"


class MirrorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a mirror."""

    source: Annotated[
        str,
        setting(
            "URL of the cluster to copy from.",
            length_max=4000,
            example="quiver://eu-1:7401,eu-2:7401",
        ),
    ]
    topics: Annotated[
        list[
            Annotated[
                str,
                setting(
                    "A topic's name at the source, or a pattern with '*'.",
                    pattern=TOPIC_PATTERN,
                    example="orders.*",
                ),
            ]
        ],
        setting(
            "Topics to copy: names, or patterns in which * matches any characters.",
            entries_max=PATTERNS_MAX,
        ),
    ]
    rename: Annotated[
        str,
        setting(
            "Name of the copy: {topic} stands for the name at the source, {cluster} for the name of "
            "this mirror.",
            length_max=200,
        ),
    ] = SAME_NAME
    with_subscriptions: Annotated[
        bool,
        setting(
            "Copy subscriptions and their delivery state too, so that consumers can go on here "
            "after a promote. Only where names stay as they are."
        ),
    ] = False
    with_deletions: Annotated[
        bool,
        setting("Delete a copy when its topic, queue or subscription is deleted at the source."),
    ] = False
    failback: Annotated[
        bool,
        setting(
            "Let a topic here become a copy again if its former copy was promoted at the source. What "
            "only this cluster has is kept in a topic NAME.diverged-TIME first."
        ),
    ] = False
    compression: Annotated[
        MirrorCompression,
        setting(
            "Compression on the way: zstd, none, or auto: zstd while the source is far, the link slow, or "
            "a rate given. Producers' own compression stays."
        ),
    ] = MirrorCompression.AUTO
    rate: Annotated[
        int | str | None,
        setting(
            "Limit for the bytes that all nodes together fetch in a second.",
            1 << 10,
            RATE_MAX,
            unit=Unit.BYTES,
            without="no limit",
        ),
    ] = None
    paused: Annotated[bool, setting("Copy nothing for now.")] = False

    def __post_init__(self) -> None:
        check_fields(self)
        for pattern in self.topics:
            checked_name(pattern.replace("*", "x"), "topic")
        if "{topic}" not in self.rename:
            raise InvalidSetting("rename must contain {topic}", setting="rename")
        checked_name(copy_name(self.rename, "m", "t"), "topic")
        if self.with_subscriptions and self.rename != SAME_NAME:
            raise InvalidSetting(
                "subscriptions are copied only where names stay as they are: leave out rename or "
                "with_subscriptions",
                setting="with_subscriptions",
            )

        if self.failback and self.rename != SAME_NAME:
            raise InvalidSetting(
                "a topic becomes a copy again only under its own name: leave out rename or failback",
                setting="failback",
            )

    @property
    def rate_bytes(self) -> int | None:
        return None if self.rate is None else int(self.rate)

    def covers(self, topic: str) -> bool:
        """Whether a topic of the source is copied. Internal topics never are."""
        return not is_internal(topic) and any(fnmatchcase(topic, one) for one in self.topics)


def copy_name(rename: str, mirror: str, topic: str) -> str:
    """The name of a copy."""
    return rename.replace("{cluster}", mirror).replace("{topic}", topic)
