"""A subscription: a named reader of topics with its own progress, and everything that can be set."""

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
    """A work queue: as fast as it goes, roughly in order."""
    KEY = "key"
    """Publish order for each key; keys in parallel."""
    PARTITION = "partition"
    """Publish order in each partition; partitions are shared out among the members of a group."""


class Guarantee(StrEnum):
    AT_MOST_ONCE = "at-most-once"
    """Acknowledged when delivered: never twice, perhaps not at all."""
    AT_LEAST_ONCE = "at-least-once"
    EXACTLY_ONCE = "exactly-once"
    """Never again after a confirmed acknowledgement, and never to two consumers at a time."""


class OnDisconnect(StrEnum):
    """What becomes of messages that a streaming consumer holds when its connection ends."""

    RETURN = "return"
    """Others have them at once."""
    KEEP = "keep"
    """Their leases go on: the consumer may come back and settle them."""


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """How long a message rests before it is tried again: ``min`` at first, then ``factor`` times more."""

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
        """The rest after that many deliveries."""
        steps = min(max(deliveries - 1, 0), 64)
        return round(min(float(self.max), float(self.min) * self.factor**steps) * 1_000_000)


class Push(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP endpoint that messages are posted to; a 2xx answer acknowledges them."""

    url: str
    secret: str | None = None
    """The name of the secret that signs each push. The secret itself is in the node's folder."""
    batch: int = 1
    """How many messages go into one request at most."""
    concurrency: int = 4
    """How many requests are under way at a time at most."""
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
    """Everything that can be set about a subscription. Durations are seconds, or text like ``"30s"``."""

    topics: list[str]
    """Names, or patterns with ``*`` that topics made later join too."""
    ordering: Ordering = Ordering.NONE
    guarantee: Guarantee = Guarantee.AT_LEAST_ONCE
    visibility: float | str = 30.0
    max_deliveries: int = 5
    """After this many failed deliveries a message is dead-lettered; 0: never."""
    dead_letter: str | None = None
    """The topic for dead letters; by default the subscription's name with ``.dlq``."""
    backoff: Backoff = Backoff()
    ageing: float | str = 60.0
    """A message that waited this long counts as one priority higher; 0: strict priorities."""
    fairness: str | None = None
    """Whose turn it is: ``key`` or ``headers.NAME`` says which tenant a message is of, and messages
    of one priority are delivered tenant by tenant. Needs ordering ``none``."""
    session_timeout: float | str = 10.0
    """With ordering ``partition``: a member that was silent for so long has left its group."""
    filter: str | None = None
    """Only messages that match are delivered, as ``headers.region = 'eu' and priority >= 5``."""
    push: Push | None = None
    """Where a node posts the messages itself, if anywhere."""
    on_disconnect: OnDisconnect = OnDisconnect.RETURN
    """Whether what a streaming consumer holds goes back when its connection ends."""

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
        """Take a choice by its name too: ``"key"`` compares equal to it, but is not it."""
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
