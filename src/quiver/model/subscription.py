"""A subscription's settings. A subscription is a named reader of topics with its own progress.

The fields are the only definition of these settings: see ``quiver.model.setting``.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated

import msgspec

from quiver.errors import InvalidSetting
from quiver.model.setting import Unit, check_fields, setting
from quiver.model.topic import NAME_PATTERN, checked_name, readable_name

VISIBILITY_S_MAX = 12 * 3600
RECEIVE_MAX = 10_000
FILTER_LENGTH_MAX = 4096
URL_LENGTH_MAX = 2000
TOPIC_PATTERN = r"^[A-Za-z0-9_.*\-]{1,200}$"
URL_PATTERN = "^https?://"
_FAIRNESS = re.compile(r"key|headers\.[A-Za-z0-9_.-]{1,200}")
_URL = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?(/[!-~]*)?")
_PATTERN = re.compile(r"[A-Za-z0-9_.*-]{1,200}")


class Ordering(StrEnum):
    NONE = "none"
    """A work queue: highest throughput, only roughly in order."""
    KEY = "key"
    """In publish order for each key; different keys in parallel."""
    PARTITION = "partition"
    """In publish order in each partition; the members of a group share the partitions."""


class Guarantee(StrEnum):
    AT_MOST_ONCE = "at-most-once"
    """Acknowledged on delivery: never delivered twice, but may be lost."""
    AT_LEAST_ONCE = "at-least-once"
    EXACTLY_ONCE = "exactly-once"
    """Not delivered again after a confirmed acknowledgement, and never to two consumers at a time."""


class OnDisconnect(StrEnum):
    """What happens to the messages of a consumer when its connection ends without a word."""

    RETURN = "return"
    """They are ready for other consumers at once."""
    KEEP = "keep"
    """They stay leased, so that the consumer can reconnect and acknowledge them."""


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """The delay before a message is delivered again: ``min`` first, then ``factor`` times longer each
    time, up to ``max``. Each delay is up to 20% shorter, so that messages that failed together are not
    all tried again at the same moment."""

    min: Annotated[
        float | str,
        setting(
            "Delay before the first retry. 0: at once.", 0, VISIBILITY_S_MAX, unit=Unit.SECONDS
        ),
    ] = 1.0
    max: Annotated[
        float | str,
        setting("Longest delay before a retry.", 0, VISIBILITY_S_MAX, unit=Unit.SECONDS),
    ] = 600.0
    factor: Annotated[
        float, setting("Factor by which the delay grows with each retry.", 1, 100)
    ] = 2.0

    def __post_init__(self) -> None:
        check_fields(self, "backoff")
        if float(self.max) < float(self.min):
            raise InvalidSetting("backoff.max must not be below backoff.min", setting="backoff.max")

    def delay_us(self, deliveries: int) -> int:
        """The delay after that many deliveries, without jitter."""
        steps = min(max(deliveries - 1, 0), 64)
        return round(min(float(self.max), float(self.min) * self.factor**steps) * 1_000_000)


class Push(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP endpoint that receives the messages. A 2xx answer acknowledges them, 422 rejects them."""

    url: Annotated[
        str,
        setting(
            "Push messages to this URL.",
            length_max=URL_LENGTH_MAX,
            pattern=URL_PATTERN,
            example="https://hooks.example.com/quiver",
        ),
    ]
    secret: Annotated[
        str | None,
        setting(
            "Name of the secret that signs each push. The secret is a file of the node.",
            pattern=NAME_PATTERN,
            without="not signed",
        ),
    ] = None
    batch: Annotated[int, setting("Most messages in one push.", 1, 1000)] = 1
    concurrency: Annotated[int, setting("Most pushes at a time.", 1, 64)] = 4
    timeout: Annotated[
        float | str, setting("How long a push may take.", 0.1, 300, unit=Unit.SECONDS)
    ] = 10.0

    def __post_init__(self) -> None:
        check_fields(self, "push")
        if self.secret is not None:
            checked_name(self.secret, "secret")
        if len(self.url) > URL_LENGTH_MAX or not _URL.fullmatch(self.url):
            raise InvalidSetting(
                "push.url must be a URL such as 'https://hooks.example.com/quiver', without a password",
                setting="push.url",
            )

    @property
    def timeout_s(self) -> float:
        return float(self.timeout)


class SubscriptionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a subscription or queue. Durations are seconds, or text such as ``"30s"``."""

    topics: Annotated[
        list[
            Annotated[
                str,
                setting(
                    "A topic's name, or a pattern with '*'.",
                    pattern=TOPIC_PATTERN,
                    example="orders",
                ),
            ]
        ],
        setting(
            "Topics to read, or patterns with '*'. A pattern also covers topics that are created "
            "later.",
            entries_max=1000,
        ),
    ]
    ordering: Annotated[
        Ordering,
        setting(
            "Delivery order: none (work queue), key (in order for each key) or partition (in order "
            "for each partition)."
        ),
    ] = Ordering.NONE
    guarantee: Annotated[Guarantee, setting("Delivery guarantee.")] = Guarantee.AT_LEAST_ONCE
    visibility: Annotated[
        float | str,
        setting(
            "How long a consumer may be silent before others get its messages.",
            0,
            VISIBILITY_S_MAX,
            unit=Unit.SECONDS,
        ),
    ] = 30.0
    max_deliveries: Annotated[
        int,
        setting(
            "Number of failed deliveries after which a message is dead-lettered. 0: never.",
            0,
            10_000,
        ),
    ] = 5
    dead_letter: Annotated[
        str | None,
        setting("Topic for dead letters.", pattern=NAME_PATTERN, without="NAME.dlq"),
    ] = None
    backoff: Annotated[Backoff, setting("Delay before a message is delivered again.")] = Backoff()
    ageing: Annotated[
        float | str,
        setting(
            "Raise a message's priority by 1 for each such time it waits. 0: never.",
            0,
            365 * 86_400,
            unit=Unit.SECONDS,
        ),
    ] = 60.0
    fairness: Annotated[
        str | None,
        setting(
            "Deliver round robin by this column: key or headers.NAME. Needs ordering none.",
            length_max=208,
            without="no round robin",
            example="headers.tenant",
        ),
    ] = None
    session_timeout: Annotated[
        float | str,
        setting(
            "With ordering partition: time without a heartbeat after which a member leaves its group.",
            3,
            300,
            unit=Unit.SECONDS,
        ),
    ] = 10.0
    filter: Annotated[
        str | None,
        setting(
            "Deliver only messages that match this filter, such as priority >= 5.",
            length_max=FILTER_LENGTH_MAX,
            without="all messages",
            example="headers.region = 'eu'",
        ),
    ] = None
    push: Annotated[
        Push | None,
        setting("A webhook: the node posts the messages to a URL.", without="no push"),
    ] = None
    on_disconnect: Annotated[
        OnDisconnect,
        setting(
            "When a consumer disconnects: return its messages to the queue at once, or keep them "
            "leased."
        ),
    ] = OnDisconnect.RETURN
    max_processing: Annotated[
        float | str,
        setting(
            "Longest time that a consumer may work on a message. Until then a live consumer keeps it.",
            1,
            VISIBILITY_S_MAX,
            unit=Unit.SECONDS,
        ),
    ] = 1800.0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.filter is not None:
            from quiver.model.filter import parse_filter  # noqa: PLC0415 - it loads pyarrow

            parse_filter(self.filter)
        if self.dead_letter is not None:
            checked_name(self.dead_letter, "topic")
        if self.fairness is not None and not _FAIRNESS.fullmatch(self.fairness):
            raise InvalidSetting(
                f"fairness must be 'key' or 'headers.NAME', not {self.fairness[:80]!r}",
                setting="fairness",
            )
        if self.fairness is not None and self.ordering is not Ordering.NONE:
            raise InvalidSetting(
                f"fairness changes the order and ordering {self.ordering.value!r} keeps it: "
                "choose one of them",
                setting="fairness",
            )
        for topic in self.topics:
            if "*" not in topic:
                readable_name(topic, "topic")
            elif not _PATTERN.fullmatch(topic):
                raise InvalidSetting(f"{topic[:80]!r} is not a topic pattern", setting="topics")

    @property
    def visibility_s(self) -> float:
        return float(self.visibility)

    @property
    def visibility_us(self) -> int:
        return round(self.visibility_s * 1_000_000)

    @property
    def max_processing_us(self) -> int:
        return round(float(self.max_processing) * 1_000_000)

    @property
    def trusts_silence(self) -> bool:
        """Whether what a consumer had when it ended without a word stays leased to it."""
        return self.on_disconnect is OnDisconnect.KEEP or self.guarantee is Guarantee.EXACTLY_ONCE

    @property
    def session_timeout_us(self) -> int:
        return round(float(self.session_timeout) * 1_000_000)

    @property
    def ageing_us(self) -> int:
        return round(float(self.ageing) * 1_000_000)
