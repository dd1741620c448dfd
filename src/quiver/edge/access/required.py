"""What each call of the protocol needs: one rule for every call, and no call without one.

The rules are pure. What a subscription reads and where its dead letters go are part of what its
maker must be allowed, so that nobody gets at a topic through a subscription of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from quiver.edge.access.permissions import Kind, Need, Permission
from quiver.model import wire

PUBLISH = (Permission.PUBLISH,)
CONSUME = (Permission.CONSUME,)
ADMIN = (Permission.ADMIN,)
SEE = tuple(Permission)
"""Whoever may do something with a thing may see it."""
CLUSTER_ADMIN = Need(ADMIN, Kind.CLUSTER, "*")
CLUSTER_WATCH = Need((Permission.CONSUME, Permission.ADMIN), Kind.CLUSTER, "*")

Needs = tuple[Need, ...]
IsQueue = Callable[[str], bool]
"""Whether there is a queue of that name."""


def topic(permissions: tuple[Permission, ...], name: str) -> Need:
    return Need(permissions, Kind.TOPIC, name)


def subscription(permissions: tuple[Permission, ...], name: str) -> Need:
    return Need(permissions, Kind.SUBSCRIPTION, name)


def required(request: wire.AnyRequest, is_queue: IsQueue = lambda _: False) -> Needs:
    """All that a request needs; ``KeyError`` for a call without a rule, which there is not."""
    if isinstance(request, wire.DeleteSubscription) and is_queue(request.name):
        return (subscription(ADMIN, request.name), topic(ADMIN, request.name))
    return RULES[type(request)](request)


def _none(_: Any) -> Needs:
    """Knowing who asks is enough. Listings leave out what the caller may not see."""
    return ()


def _open_producer(request: wire.OpenProducer) -> Needs:
    """A name is stored for good: for that, who asks must be one who publishes."""
    if request.topic is None:
        return () if request.name is None else (topic(PUBLISH, "*"),)
    return (topic(PUBLISH, request.topic),)


def _create_subscription(request: wire.CreateSubscription) -> Needs:
    return (
        subscription(ADMIN, request.name),
        *_reached(request.settings.topics, request.settings.dead_letter),
    )


def _create_queue(request: wire.CreateQueue) -> Needs:
    return (
        topic(ADMIN, request.name),
        subscription(ADMIN, request.name),
        *_reached_by(request.subscription),
    )


def _alter_subscription(request: wire.AlterSubscription) -> Needs:
    return (subscription(ADMIN, request.name), *_reached_by(request.changes))


def _reached_by(settings: dict[str, Any]) -> Needs:
    return _reached(settings.get("topics", []), settings.get("dead_letter"))


def _reached(topics: Any, dead_letter: Any) -> Needs:
    """Topics that a subscription reads or writes; of what is no name, all of them."""
    reads = topics if isinstance(topics, list) else ["*"]
    needs = [topic(CONSUME, one if isinstance(one, str) else "*") for one in reads]
    if dead_letter is not None:
        letters = dead_letter if isinstance(dead_letter, str) else "*"
        needs += [
            topic(PUBLISH, letters),
            topic(CONSUME, letters),
        ]  # a redrive takes them out again
    return tuple(needs)


def _redrive(request: wire.Redrive) -> Needs:
    to = () if request.to is None else (topic(PUBLISH, request.to),)
    return (subscription(ADMIN, request.subscription), *to)


def _on_topic(permissions: tuple[Permission, ...], field: str = "topic") -> Callable[[Any], Needs]:
    return lambda request: (Need(permissions, Kind.TOPIC, getattr(request, field)),)


def _on_subscription(
    permissions: tuple[Permission, ...], field: str = "subscription"
) -> Callable[[Any], Needs]:
    return lambda request: (Need(permissions, Kind.SUBSCRIPTION, getattr(request, field)),)


def _watch(_: Any) -> Needs:
    """Figures name every topic and subscription."""
    return (CLUSTER_WATCH,)


def _cluster(_: Any) -> Needs:
    return (CLUSTER_ADMIN,)


RULES: dict[type, Callable[[Any], Needs]] = {
    wire.Hello: _none,
    wire.Ping: _none,
    wire.Abandon: _none,
    wire.DescribeNode: _none,
    wire.ReadMetrics: _watch,
    wire.ListAlerts: _none,
    wire.AskPeer: lambda _: (CLUSTER_ADMIN,),
    wire.CreateTopic: _on_topic(ADMIN, "name"),
    wire.AlterTopic: _on_topic(ADMIN, "name"),
    wire.SplitPartition: _on_topic(ADMIN),
    wire.DeleteTopic: _on_topic(ADMIN, "name"),
    wire.DescribeTopic: _on_topic(SEE, "name"),
    wire.ListTopics: _none,
    wire.OpenProducer: _open_producer,
    wire.Publish: _on_topic(PUBLISH),
    wire.Copy: lambda request: (
        topic(PUBLISH, request.topic),
        topic(CONSUME, request.from_topic),
    ),
    wire.Fetch: _on_topic(CONSUME),
    wire.FindOffset: _on_topic(CONSUME),
    wire.CreateSubscription: _create_subscription,
    wire.CreateQueue: _create_queue,
    wire.AlterSubscription: _alter_subscription,
    wire.DeleteSubscription: _on_subscription(ADMIN, "name"),
    wire.DescribeSubscription: _on_subscription(SEE, "name"),
    wire.ListSubscriptions: _none,
    wire.Receive: _on_subscription(CONSUME),
    wire.Ack: _on_subscription(CONSUME),
    wire.Nack: _on_subscription(CONSUME),
    wire.Extend: _on_subscription(CONSUME),
    wire.Return: _on_subscription(CONSUME),
    wire.Heartbeat: _on_subscription(CONSUME),
    wire.Leave: _on_subscription(CONSUME),
    wire.Peek: _on_subscription(CONSUME),
    wire.ReadState: _on_subscription(CONSUME),
    wire.Seek: _on_subscription(ADMIN),
    wire.Purge: _on_subscription(ADMIN),
    wire.Redrive: _redrive,
    wire.Cancel: _on_topic((Permission.PUBLISH, Permission.ADMIN)),
    wire.FindMessage: _on_topic(CONSUME),
    wire.CreateToken: _cluster,
    wire.ListTokens: _cluster,
    wire.RevokeToken: _cluster,
    wire.DescribeCluster: _none,
    wire.MovePartition: _cluster,
    wire.TransferLead: _cluster,
    wire.Decommission: _cluster,
}
SUBJECT: dict[type, Callable[[Any], str]] = {
    wire.Publish: attrgetter("topic"),
    wire.Fetch: attrgetter("topic"),
    wire.FindOffset: attrgetter("topic"),
    wire.DescribeTopic: attrgetter("name"),
    wire.Receive: attrgetter("subscription"),
    wire.Ack: attrgetter("subscription"),
    wire.Nack: attrgetter("subscription"),
    wire.Extend: attrgetter("subscription"),
}
"""The one name on which everything depends that such a call needs: it is enough to decide once."""
ADMINISTRATIVE = frozenset(
    {
        wire.CreateTopic,
        wire.AlterTopic,
        wire.SplitPartition,
        wire.DeleteTopic,
        wire.CreateSubscription,
        wire.CreateQueue,
        wire.AlterSubscription,
        wire.DeleteSubscription,
        wire.Seek,
        wire.Purge,
        wire.Redrive,
        wire.CreateToken,
        wire.RevokeToken,
        wire.MovePartition,
        wire.TransferLead,
        wire.Decommission,
    }
)
"""Calls that leave a line in the audit log also when they are carried out."""
