"""Calls for subscriptions and queues, and their descriptions."""

from __future__ import annotations

from typing import Any

import msgspec

from quiver.model.subscription import SubscriptionSettings
from quiver.model.topic import TopicSettings
from quiver.protocol.base import Reply, Request


class PartitionProgress(msgspec.Struct, kw_only=True):
    """How far a subscription has come in one partition."""

    topic: str
    partition: int
    committed: int
    """The committed offset: every message before it is finished."""
    end: int
    """The offset of the next message that is stored."""
    lag: int
    """Stored messages that are not finished."""


class SubscriptionInfo(msgspec.Struct, kw_only=True):
    name: str
    number: int
    """Never reused, not even for a later subscription with the same name."""
    settings: SubscriptionSettings
    created_us: int
    is_queue: bool = False
    mirror: str = ""
    """The mirror that copies it, if it is copied. It delivers what was promoted."""
    ready: int | None = None
    """Messages that can be delivered now."""
    delayed: int | None = None
    leased: int | None = None
    dead: int | None = None
    """Messages in the dead-letter queue, or about to be moved there. If several subscriptions share
    that queue, these are the messages of all of them."""
    unseen: int | None = None
    """Stored messages that the subscription has not read yet."""
    members: dict[str, list[str]] | None = None
    """With ordering ``partition``: the members of the group, and the partitions of each."""
    consumers: list[str] | None = None
    """Consumers that hold or wait for messages; not all if there are many."""
    partitions: list[PartitionProgress] | None = None
    """How far it has come in each partition that has a leader now. The numbers are of these only."""


class CreateSubscription(Request, tag="create_subscription"):
    name: str
    settings: SubscriptionSettings
    start: str = "latest"
    """Where to begin in partitions that exist: ``earliest`` or ``latest``."""
    start_time_us: int | None = None
    """Where to begin instead: at the first message appended at or after this time."""
    start_offset: int | None = None
    """Where to begin instead: at this offset, in every partition."""
    exist_ok: bool = False
    """An existing subscription with the same settings is not an error."""


class CreateQueue(Request, tag="create_queue"):
    """A topic and a subscription of the same name, in one step."""

    name: str
    topic: TopicSettings
    subscription: dict[str, Any] = {}
    """Settings by name, as in ``SubscriptionSettings``, without ``topics``."""
    exist_ok: bool = False


class AlterSubscription(Request, tag="alter_subscription"):
    name: str
    changes: dict[str, Any]


class DeleteSubscription(Request, tag="delete_subscription"):
    """Of a queue, the topic goes too."""

    name: str


class DescribeSubscription(Request, tag="describe_subscription"):
    name: str


class ListSubscriptions(Request, tag="list_subscriptions"):
    pass


class Subscription(Reply, tag="subscription"):
    subscription: SubscriptionInfo


class Subscriptions(Reply, tag="subscriptions"):
    subscriptions: list[SubscriptionInfo]
