"""Mirrors: copying topics from another cluster.

``describe_source``, ``fetch_log`` and ``fetch_delivery_state`` are asked of the source, by the nodes of the
cluster that copies. They change nothing there. ``fence_topic`` is asked of the source when a copy is
promoted. The others administer the mirrors of the cluster that copies.
"""

from __future__ import annotations

from typing import Any

import msgspec

from quiver.model.mirror.entry_mark import EntryMark
from quiver.model.mirror.origin import Origin
from quiver.model.mirror.settings import MirrorSettings
from quiver.protocol.base import Reply, Request
from quiver.protocol.subscriptions import SubscriptionInfo
from quiver.protocol.topics import TopicInfo

# ---------------------------------------------------------------------- asked of the source


class DescribeSource(Request, tag="describe_source"):
    """The topics that match patterns, as far as the caller may read them."""

    topics: list[str]
    """Names, or patterns in which ``*`` matches any characters."""
    with_subscriptions: bool = False
    """Also the subscriptions of these topics that the caller may consume from."""
    known: str = ""
    """The version of the last answer: the next one is empty if nothing has changed since."""


class SourceDescribed(Reply, tag="source_described"):
    cluster: str
    """The cluster's id: made once, and never changed."""
    version: str
    is_unchanged: bool = False
    """Nothing has changed since the version that the caller knows. The lists are empty."""
    topics: list[TopicInfo] = []
    subscriptions: list[SubscriptionInfo] = []
    hidden_subscriptions: dict[str, int] = {}
    """By topic, how many subscriptions the caller may not consume from, if they were asked for."""


class FetchLog(Request, tag="fetch_log"):
    """Entries of a partition as they are stored, with those of open and aborted transactions."""

    topic: str
    partition: int
    offset: int
    number: int = 0
    """The topic's number, if it is known: a topic of that name with another number is another one."""
    cluster: str = ""
    """The cluster's id, if it is known."""
    epoch: int = -1
    """The leader's epoch in the last answer; -1: there was none."""
    last: EntryMark | None = None
    """The entry before ``offset`` that the caller has. Compared if the epoch is another; without it, a
    fetch that goes on after another epoch fails with ``leader_changed``."""
    bytes_max: int = 1 << 20
    wait_ms: int = 0
    """How long to wait while there is nothing."""
    compression: str = "none"
    """How the body may be compressed: ``zstd`` or ``none``."""


class LogFetched(Reply, tag="log_fetched"):
    """The body is whole entries. They begin after ``offset`` where retention removed what was there."""

    start_offset: int
    """Where the log begins."""
    next_offset: int
    """Where the log ends, with messages of open transactions."""
    read_to: int
    """Where the entries end: the offset of the next fetch."""
    epoch: int
    time_us: int
    """The source's clock."""
    size: int
    """Of the entries; the body is smaller if it is compressed."""
    compression: str = "none"
    left_bytes: int = 0
    """About how many bytes of entries follow."""


class FetchDeliveryState(Request, tag="fetch_delivery_state"):
    """Where the subscriptions of a partition stand: the snapshots that a new leader would begin with."""

    topic: str
    partition: int
    number: int = 0
    cluster: str = ""
    known: dict[str, int] = {}
    """By subscription, the digest of the state that the caller has: that is not sent again."""


class DeliveryStateFetched(Reply, tag="delivery_state_fetched"):
    """The body is the snapshots of the subscriptions whose state has changed, in their order here."""

    time_us: int
    """When they were taken, by the source's clock."""
    data_offset: int
    """What the snapshots speak of ends here: they count only together with the messages before it."""
    sizes: dict[str, int] = {}
    """By subscription, the bytes of its snapshot."""
    digests: dict[str, int] = {}
    """By subscription, the digest of its state; of all of them."""


class FenceTopic(Request, tag="fence_topic"):
    """Let a topic take no publishes and deliver nothing from now on: its copy elsewhere goes on."""

    name: str
    moved_to: str
    """The cluster that goes on, as errors name it; empty: the topic is writable again."""


# ---------------------------------------------------------------------- asked of the cluster that copies


class CopiedPartition(msgspec.Struct, kw_only=True):
    """How far the copy of one partition has come."""

    index: int
    next_offset: int
    """Where the copy ends."""
    source_offset: int | None = None
    """Where the source ended when it last answered; ``None`` if it has not answered yet."""
    lag_messages: int | None = None
    lag_bytes: int | None = None
    """About how many stored bytes are missing."""
    lag_s: float | None = None
    """For how long the copy has not had everything that the source had."""
    state_lag_s: float | None = None
    """How old the delivery state of its subscriptions is; ``None`` if it is not copied, or not yet."""
    gaps: list[tuple[int, int]] = []
    """Offsets that retention at the source removed before they were copied: from, up to but without."""
    error: str = ""
    """Why nothing is copied now."""
    is_broken: bool = False
    """Whether that does not pass by itself."""


class CopiedTopic(msgspec.Struct, kw_only=True):
    name: str
    source: str
    """Its name at the source."""
    error: str = ""
    """Why it is not copied: its name is taken, or it would travel in a circle."""
    partitions: list[CopiedPartition] = []
    diverged_to: str = ""
    """After a failback: the topic that has the messages that the source never got."""


class MirrorInfo(msgspec.Struct, kw_only=True):
    name: str
    settings: MirrorSettings
    created_us: int
    has_token: bool = False
    """Whether it shows the source a token, which is not in here."""
    cluster: str = ""
    """The id of the source, once it has answered."""
    state: str = "connecting"
    """``connecting``, ``copying``, ``paused``, or ``broken`` if something does not pass by itself."""
    error: str = ""
    """Why the source cannot be reached now."""
    topics: list[CopiedTopic] = []
    copied_bytes: int = 0
    """Bytes of entries that were copied since the nodes started."""
    fetched_bytes: int = 0
    """Bytes that came over the network for that."""

    @property
    def lag_messages(self) -> int | None:
        """Messages that all partitions lack; ``None`` while one of them is not known."""
        return _total([one.lag_messages for one in self._partitions()])

    @property
    def lag_bytes(self) -> int | None:
        """Stored bytes that all partitions lack, about; ``None`` while one of them is not known."""
        return _total([one.lag_bytes for one in self._partitions()])

    @property
    def lag_s(self) -> float | None:
        """The longest time for which a partition has not had everything."""
        return max((one.lag_s for one in self._partitions() if one.lag_s is not None), default=None)

    def _partitions(self) -> list[CopiedPartition]:
        return [one for topic in self.topics for one in topic.partitions]


def _total(found: list[int | None]) -> int | None:
    known = [one for one in found if one is not None]
    return sum(known) if known and len(known) == len(found) else None


class CreateMirror(Request, tag="create_mirror"):
    """Begin to copy topics of another cluster. The body is the token for it, or nothing."""

    name: str
    settings: MirrorSettings


class AlterMirror(Request, tag="alter_mirror"):
    """Change settings of a mirror. The body is a new token, or nothing: then it stays."""

    name: str
    changes: dict[str, Any]


class DeleteMirror(Request, tag="delete_mirror"):
    """Copy no more. The copies stay, and are read-only until they are promoted or deleted."""

    name: str


class DescribeMirror(Request, tag="describe_mirror"):
    name: str


class ListMirrors(Request, tag="list_mirrors"):
    pass


class PromoteTopics(Request, tag="promote_topics"):
    """Make copies writable, each in one step. Their subscriptions deliver from then on."""

    topics: list[str]
    """Names of copies, or patterns in which ``*`` matches any characters."""
    fence: bool = True
    """Ask the source to stop first, and wait for what it has."""
    wait_ms: int = 10_000
    """How long to wait for the source, in all."""


class Mirror(Reply, tag="mirror"):
    mirror: MirrorInfo


class Mirrors(Reply, tag="mirrors"):
    mirrors: list[MirrorInfo]


class PromotedTopic(msgspec.Struct, kw_only=True):
    name: str
    source: Origin
    is_fenced: bool
    """Whether the source was stopped first."""
    is_complete: bool
    """Whether the copy had everything that the source had when it was stopped."""
    error: str = ""
    """Why it is not fenced or not complete."""


class TopicsPromoted(Reply, tag="topics_promoted"):
    topics: list[PromotedTopic]
