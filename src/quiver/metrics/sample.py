"""A node at one moment, as values: what metrics show and alerts judge."""

from __future__ import annotations

import msgspec


class TopicSample(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of replicas is there once the topic has any."""

    name: str
    size: int = 0
    dedup_forgotten: int = 0
    """Ids that dedup windows forgot before their time."""
    open_transactions: int = 0
    """In all its partitions on this node: one counts in each that it has written to."""
    transaction_age_s: float = 0.0
    """How long the oldest of them has been open. Readers wait for it."""
    in_sync: int | None = None
    eligible: int | None = None
    missing: int | None = None
    replication_lag: int | None = None
    leader_changes: int | None = None
    is_complete: bool = True
    """Whether all its partitions on this node are open, so that nothing is missing in ``size``."""


class PartitionSample(msgspec.Struct, frozen=True, kw_only=True):
    """How far a subscription has come in one partition."""

    topic: str
    partition: int
    committed: int
    lag: int


class SubscriptionSample(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    ready: int = 0
    """What is stored and was not yet looked at is ready, too."""
    delayed: int = 0
    leased: int = 0
    dead_letter_pending: int = 0
    """On the way to the dead letters."""
    dead: int | None = 0
    """In its dead-letter queue and not handled; ``None`` while that is not open here."""
    dead_lettered: int = 0
    """How many became dead letters since the node started."""
    recovered_letters_us: int | None = None
    """The time of the oldest letter, if it was there before this node opened the dead-letter queue."""
    oldest_age_s: float = 0.0
    unread_lost: int = 0
    """Deleted by retention before they were finished, since the node started."""
    holds_dead_letters: bool = False
    """Whether it is the queue for the dead letters of others."""
    partitions: list[PartitionSample] = []
    """Those that this node leads and has opened."""
    is_complete: bool = True
    """Whether these are all that it leads, and all of its dead-letter queue."""

    @property
    def lag(self) -> int:
        return self.ready + self.delayed + self.leased + self.dead_letter_pending


GAPS_WINDOW_US = 3600_000_000
"""For how long a gap is told of by an alert."""


class MirrorSample(msgspec.Struct, frozen=True, kw_only=True):
    """The partitions of a mirrored topic that this node copies."""

    mirror: str
    topic: str
    lag_messages: int | None = 0
    """``None`` while it is not known of all partitions."""
    lag_bytes: int | None = 0
    """The same; not known either of a copy that is behind while its mirror is paused."""
    lag_s: float = 0.0
    """For how long the partition that is furthest behind has not had everything."""
    state_lag_s: float | None = None
    """How old the delivery state of its subscriptions is; ``None`` if it is not copied."""
    copied_bytes: int = 0
    gap_messages: int = 0
    """Removed at the source before they were copied, since the node started to copy."""
    missing_messages: int = 0
    """The same, since the copy was begun."""
    gaps: list[tuple[int, int]] = []
    """The same within the last hour, whoever copied: when it was found out, and how many. The newest last."""
    broken: int = 0
    """Partitions that are not copied, and will not be by themselves."""


class SourceSample(msgspec.Struct, frozen=True, kw_only=True):
    """The source of a mirror that runs on this node."""

    mirror: str
    is_broken: bool = False
    """Whether it refuses this node, or has not answered even once for a while."""


class NodeSample(msgspec.Struct, frozen=True, kw_only=True):
    """Counts (``requests``, ``errors``, decided transactions) are since the node started."""

    time_us: int
    topics: list[TopicSample]
    subscriptions: list[SubscriptionSample]
    free_bytes: int | None = None
    partitions: int = 0
    partitions_failed: int = 0
    requests: float = 0
    errors: float = 0
    transactions_committed: int = 0
    transactions_aborted: int = 0
    transactions_unfinished: int = 0
    """Decided here, and not known to all their partitions yet."""
    nodes_down: list[str] = []
    forwarders: int = 0
    mirrors: list[MirrorSample] = []
    sources: list[SourceSample] = []
    mirrored: frozenset[str] = frozenset()
    """The topics that a mirror copies, on whatever node."""
