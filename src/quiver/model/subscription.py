"""A subscription's settings. A subscription is a named reader of topics with its own progress."""

from __future__ import annotations

import re
from enum import StrEnum

import msgspec

from quiver.errors import InvalidSetting
from quiver.model.topic import checked_name, readable_name, within
from quiver.model.units import seconds

VISIBILITY_S_MAX = 12 * 3600
RECEIVE_MAX = 10_000
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
    """What happens to the messages of a streaming consumer when its connection ends."""

    RETURN = "return"
    """They are ready for other consumers at once."""
    KEEP = "keep"
    """They stay leased, so that the consumer can reconnect and acknowledge them."""


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """The delay before a message is delivered again: ``min`` first, then ``factor`` times longer each
    time, up to ``max``."""

    min: float | str = 0.0
    max: float | str = 600.0
    factor: float = 2.0

    def __post_init__(self) -> None:
        for name in ("min", "max"):
            msgspec.structs.force_setattr(self, name, float(seconds(getattr(self, name))))
            within(f"backoff.{name}", float(getattr(self, name)), 0, VISIBILITY_S_MAX)
        within("backoff.factor", self.factor, 1, 100)
        if float(self.max) < float(self.min):
            raise InvalidSetting("backoff.max must not be below backoff.min", setting="backoff.max")

    def delay_us(self, deliveries: int) -> int:
        """The delay after that many deliveries."""
        steps = min(max(deliveries - 1, 0), 64)
        return round(min(float(self.max), float(self.min) * self.factor**steps) * 1_000_000)


class Push(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP endpoint that receives the messages. A 2xx answer acknowledges them."""

    url: str
    secret: str | None = None
    """Name of the secret that signs each push. The secret is a file on the node."""
    batch: int = 1
    """Most messages in one request."""
    concurrency: int = 4
    """Most requests at a time."""
    timeout: float | str = 10.0

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "timeout", float(seconds(self.timeout)))
        within("push.timeout", self.timeout_s, 0.1, 300)
        within("push.batch", self.batch, 1, 1000)
        within("push.concurrency", self.concurrency, 1, 64)
        if self.secret is not None:
            checked_name(self.secret, "secret")
        if len(self.url) > 2000 or not _URL.fullmatch(self.url):
            raise InvalidSetting(
                "push.url must be a URL such as 'https://hooks.example.com/quiver', without a password",
                setting="push.url",
            )

    @property
    def timeout_s(self) -> float:
        return float(self.timeout)


class SubscriptionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a subscription or queue. Durations are seconds, or text such as ``"30s"``."""

    topics: list[str]
    """Topics, or patterns with ``*``, which also match topics created later."""
    ordering: Ordering = Ordering.NONE
    guarantee: Guarantee = Guarantee.AT_LEAST_ONCE
    visibility: float | str = 30.0
    max_deliveries: int = 5
    """Number of failed deliveries after which a message is dead-lettered; 0: never."""
    dead_letter: str | None = None
    """Topic for dead letters; the default is the subscription's name with ``.dlq``."""
    backoff: Backoff = Backoff()
    ageing: float | str = 60.0
    """A message's priority rises by 1 for each such time it waits; 0: strict priorities."""
    fairness: str | None = None
    """Round-robin delivery among tenants: ``key`` or ``headers.NAME`` names the column with the tenant
    of a message. Needs ordering ``none``."""
    session_timeout: float | str = 10.0
    """With ordering ``partition``: time without a heartbeat after which a member leaves its group."""
    filter: str | None = None
    """Only matching messages are delivered, as in ``headers.region = 'eu' and priority >= 5``."""
    push: Push | None = None
    """The endpoint to which the node pushes the messages, if any."""
    on_disconnect: OnDisconnect = OnDisconnect.RETURN
    """What happens to the messages of a streaming consumer when its connection ends."""

    def __post_init__(self) -> None:
        self._choose("ordering", Ordering)
        self._choose("on_disconnect", OnDisconnect)
        self._choose("guarantee", Guarantee)
        for name in ("visibility", "ageing", "session_timeout"):
            msgspec.structs.force_setattr(self, name, float(seconds(getattr(self, name))))
        within("visibility", self.visibility_s, 0, VISIBILITY_S_MAX)
        within("ageing", float(self.ageing), 0, 365 * 86400)
        within("session_timeout", float(self.session_timeout), 3, 300)
        within("max_deliveries", self.max_deliveries, 0, 10_000)
        if not 1 <= len(self.topics) <= 1000:
            raise InvalidSetting("topics must name 1 to 1,000 topics", setting="topics")
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

    def _choose(self, name: str, choices: type[StrEnum]) -> None:
        """Convert a text such as ``"key"`` to its enumeration."""
        try:
            msgspec.structs.force_setattr(self, name, choices(getattr(self, name)))
        except ValueError:
            raise InvalidSetting(
                f"{name} must be one of {', '.join(choices)}, not {getattr(self, name)!r}",
                setting=name,
            ) from None

    @property
    def visibility_s(self) -> float:
        return float(self.visibility)

    @property
    def session_timeout_us(self) -> int:
        return round(float(self.session_timeout) * 1_000_000)

    @property
    def ageing_us(self) -> int:
        return round(float(self.ageing) * 1_000_000)
