"""Topics over HTTP."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from quiver.edge.http.schemas.settings import partial_of
from quiver.model.mirror.origin import Origin
from quiver.model.topic import TopicSettings

TopicFields = partial_of(
    "TopicFields",
    TopicSettings,
    doc="Settings of a topic. One that is left out has its default in a new topic, and stays as it "
    "is when a topic is changed.",
)


class OpenTransactionView(Struct, kw_only=True):
    """A transaction that has published to a partition and is open. Readers wait for it."""

    id: str
    since: datetime
    first_offset: int


class PartitionView(Struct, kw_only=True):
    index: int
    leader: str | None = None
    start_offset: int | None = None
    next_offset: int | None = None
    bytes: int | None = None
    dedup_forgotten: int = 0
    open_transactions: list[OpenTransactionView] = []


class TopicView(Struct, kw_only=True):
    name: str
    created: datetime
    settings: TopicSettings
    partitions: list[PartitionView]
    origin: Origin | None = None
    """Of a mirrored topic: where its messages come from. It takes no publishes until it is promoted."""
    moved_to: str = ""
    """The cluster whose copy was promoted in its place. It takes no publishes any more."""
    diverged_to: str = ""
    """After a failback: the topic that has the messages that the source never got."""


class TopicList(Struct, kw_only=True):
    topics: list[TopicView]
