"""A node at one moment, as the console is told it: one of these goes out every second."""

from __future__ import annotations

import msgspec


class NodeMetricsRow(msgspec.Struct, kw_only=True):
    name: str
    software: str
    uptime_s: float
    topics: int
    partitions: int
    connections: int
    answer_ms: float
    """How long the node took to say this."""
    publish_p50_ms: float | None = None
    """How long publishes took of late, half of them; ``None`` if there were none, or the viewer may
    not know."""
    publish_p99_ms: float | None = None


class TopicMetricsRow(msgspec.Struct, kw_only=True):
    name: str
    partitions: int
    messages: int = 0
    bytes: int = 0
    rate: float = 0.0
    """Messages stored each second."""
    byte_rate: float = 0.0
    holds_dead_letters: bool = False
    """Whether it is the topic for dead letters of subscriptions that the viewer may see."""


class SubscriptionMetricsRow(msgspec.Struct, kw_only=True):
    name: str
    is_queue: bool
    topics: list[str]
    ready: int = 0
    delayed: int = 0
    leased: int = 0
    dead: int = 0
    pending: int = 0
    """All that is not finished: the lag in messages."""
    rate: float = 0.0
    """Messages finished each second."""
    oldest_s: float | None = None
    """Age of the oldest message that is not finished; ``None`` if it is not known."""
    consumers: int = 0
    """Who holds messages or waits for some, or is in the group."""
    dead_letters: str = ""
    """The topic for its dead letters."""
    holds_dead_letters: bool = False
    """Whether it is the queue for dead letters of others, which are counted as ``dead`` there."""


class Totals(msgspec.Struct, kw_only=True):
    """Over all that the viewer may see, except topics and queues that hold dead letters."""

    published_rate: float = 0.0
    byte_rate: float = 0.0
    finished_rate: float = 0.0
    ready: int = 0
    delayed: int = 0
    leased: int = 0
    dead: int = 0
    pending: int = 0
    oldest_s: float = 0.0


class ConsoleSnapshot(msgspec.Struct, kw_only=True):
    time_ms: int
    node: NodeMetricsRow
    totals: Totals
    topics: list[TopicMetricsRow]
    subscriptions: list[SubscriptionMetricsRow]
    more_topics: int = 0
    """How many are there that are not in the list."""
    more_subscriptions: int = 0
