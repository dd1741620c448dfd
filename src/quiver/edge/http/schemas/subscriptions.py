"""Queues and subscriptions over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from quiver.edge.http.schemas.settings import partial_of
from quiver.model.subscription import SubscriptionSettings
from quiver.model.topic import TopicSettings
from quiver.protocol import PartitionProgress

_NO_TOPICS = frozenset({"topics"})
_DEFAULT = "A setting that is left out has its default."
_UNCHANGED = "A setting that is left out stays as it is."
QueueFields = partial_of(
    "QueueFields",
    TopicSettings,
    SubscriptionSettings,
    doc=f"Settings of a new queue: those of its topic and of its subscription. {_DEFAULT}",
    without=_NO_TOPICS,
)
QueueChanges = partial_of(
    "QueueChanges",
    TopicSettings,
    SubscriptionSettings,
    doc=f"Changes to the settings of a queue, of its topic and of its subscription. {_UNCHANGED}",
    is_new=False,
    without=_NO_TOPICS,
)
SubscriptionFields = partial_of(
    "SubscriptionFields",
    SubscriptionSettings,
    doc=f"Settings of a new subscription. {_DEFAULT}",
    extra=(
        ("start", Literal["latest", "earliest"] | UnsetType, UNSET),
        ("start_time", Annotated[datetime, Meta(tz=True)] | UnsetType, UNSET),
    ),
)
SubscriptionChanges = partial_of(
    "SubscriptionChanges",
    SubscriptionSettings,
    doc=f"Changes to the settings of a subscription. {_UNCHANGED}",
    is_new=False,
)


class SubscriptionView(Struct, kw_only=True):
    name: str
    created: datetime
    is_queue: bool
    settings: SubscriptionSettings
    mirror: str = ""
    """The mirror that copies it, if it is copied. It delivers what was promoted."""
    ready: int | None = None
    delayed: int | None = None
    leased: int | None = None
    dead: int | None = None
    unseen: int | None = None
    members: dict[str, list[str]] | None = None
    """Members of the consumer group, with the partitions that each reads."""
    consumers: list[str] | None = None
    """Consumers that hold or wait for messages; not all if there are many."""
    partitions: list[PartitionProgress] | None = None
    """The committed offset, the end and the lag of each partition that has a leader now. The numbers
    of messages are of these only."""


class SubscriptionList(Struct, kw_only=True):
    subscriptions: list[SubscriptionView]


class QueueList(Struct, kw_only=True):
    queues: list[SubscriptionView]
