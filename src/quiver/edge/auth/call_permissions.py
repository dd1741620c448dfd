"""What each call of the protocol needs: one rule for every call, and no call without one.

The rules are pure. What a subscription reads and where its dead letters go are part of what its
maker must be allowed, so that nobody gets at a topic through a subscription of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from quiver import protocol
from quiver.edge.auth.permissions import Need, Permission, ResourceKind

PUBLISH = (Permission.PUBLISH,)
CONSUME = (Permission.CONSUME,)
ADMIN = (Permission.ADMIN,)
SEE = tuple(Permission)
"""Whoever may do something with a thing may see it."""
CLUSTER_ADMIN = Need(ADMIN, ResourceKind.CLUSTER, "*")
CLUSTER_WATCH = Need((Permission.CONSUME, Permission.ADMIN), ResourceKind.CLUSTER, "*")

Needs = tuple[Need, ...]
IsQueue = Callable[[str], bool]
"""Whether there is a queue of that name."""


def topic(permissions: tuple[Permission, ...], name: str) -> Need:
    return Need(permissions, ResourceKind.TOPIC, name)


def subscription(permissions: tuple[Permission, ...], name: str) -> Need:
    return Need(permissions, ResourceKind.SUBSCRIPTION, name)


def required(request: protocol.AnyRequest, is_queue: IsQueue = lambda _: False) -> Needs:
    """All that a request needs; ``KeyError`` for a call without a rule, which there is not."""
    if isinstance(request, protocol.DeleteSubscription) and is_queue(request.name):
        return (subscription(ADMIN, request.name), topic(ADMIN, request.name))
    return RULES[type(request)](request)


def _none(_: Any) -> Needs:
    """Knowing who asks is enough. Listings leave out what the caller may not see."""
    return ()


def _open_producer(request: protocol.OpenProducer) -> Needs:
    """A name is stored for good: for that, who asks must be one who publishes."""
    if request.topic is None:
        return () if request.name is None else (topic(PUBLISH, "*"),)
    return (topic(PUBLISH, request.topic),)


def _create_subscription(request: protocol.CreateSubscription) -> Needs:
    return (
        subscription(ADMIN, request.name),
        *_reached(request.settings.topics, request.settings.dead_letter),
    )


def _create_queue(request: protocol.CreateQueue) -> Needs:
    return (
        topic(ADMIN, request.name),
        subscription(ADMIN, request.name),
        *_reached_by(request.subscription),
    )


def _alter_subscription(request: protocol.AlterSubscription) -> Needs:
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


def _redrive(request: protocol.Redrive) -> Needs:
    to = () if request.to is None else (topic(PUBLISH, request.to),)
    return (subscription(ADMIN, request.subscription), *to)


def _on_topic(permissions: tuple[Permission, ...], field: str = "topic") -> Callable[[Any], Needs]:
    return lambda request: (Need(permissions, ResourceKind.TOPIC, getattr(request, field)),)


def _on_subscription(
    permissions: tuple[Permission, ...], field: str = "subscription"
) -> Callable[[Any], Needs]:
    return lambda request: (Need(permissions, ResourceKind.SUBSCRIPTION, getattr(request, field)),)


def _watch(_: Any) -> Needs:
    """Figures name every topic and subscription."""
    return (CLUSTER_WATCH,)


def _cluster(_: Any) -> Needs:
    return (CLUSTER_ADMIN,)


RULES: dict[type, Callable[[Any], Needs]] = {
    protocol.Hello: _none,
    protocol.Ping: _none,
    protocol.Abandon: _none,
    protocol.DescribeNode: _none,
    protocol.ReadMetrics: _watch,
    protocol.ListAlerts: _none,
    protocol.AskPeer: lambda _: (CLUSTER_ADMIN,),
    protocol.CreateTopic: _on_topic(ADMIN, "name"),
    protocol.AlterTopic: _on_topic(ADMIN, "name"),
    protocol.SplitPartition: _on_topic(ADMIN),
    protocol.DeleteTopic: _on_topic(ADMIN, "name"),
    protocol.DescribeTopic: _on_topic(SEE, "name"),
    protocol.ListTopics: _none,
    protocol.OpenProducer: _open_producer,
    protocol.Publish: _on_topic(PUBLISH),
    protocol.Copy: lambda request: (
        topic(PUBLISH, request.topic),
        topic(CONSUME, request.from_topic),
    ),
    protocol.Fetch: _on_topic(CONSUME),
    protocol.FindOffset: _on_topic(CONSUME),
    protocol.CreateSubscription: _create_subscription,
    protocol.CreateQueue: _create_queue,
    protocol.AlterSubscription: _alter_subscription,
    protocol.DeleteSubscription: _on_subscription(ADMIN, "name"),
    protocol.DescribeSubscription: _on_subscription(SEE, "name"),
    protocol.ListSubscriptions: _none,
    protocol.Receive: _on_subscription(CONSUME),
    protocol.Ack: _on_subscription(CONSUME),
    protocol.Nack: _on_subscription(CONSUME),
    protocol.Extend: _on_subscription(CONSUME),
    protocol.Return: _on_subscription(CONSUME),
    protocol.Heartbeat: _on_subscription(CONSUME),
    protocol.Leave: _on_subscription(CONSUME),
    protocol.Peek: _on_subscription(CONSUME),
    protocol.ReadState: _on_subscription(CONSUME),
    protocol.Seek: _on_subscription(ADMIN),
    protocol.Purge: _on_subscription(ADMIN),
    protocol.Redrive: _redrive,
    protocol.Cancel: _on_topic((Permission.PUBLISH, Permission.ADMIN)),
    protocol.FindMessage: _on_topic(CONSUME),
    protocol.CreateToken: _cluster,
    protocol.ListTokens: _cluster,
    protocol.RevokeToken: _cluster,
    protocol.DescribeCluster: _none,
    protocol.MovePartition: _cluster,
    protocol.TransferLead: _cluster,
    protocol.Decommission: _cluster,
}
SUBJECT: dict[type, Callable[[Any], str]] = {
    protocol.Publish: attrgetter("topic"),
    protocol.Fetch: attrgetter("topic"),
    protocol.FindOffset: attrgetter("topic"),
    protocol.DescribeTopic: attrgetter("name"),
    protocol.Receive: attrgetter("subscription"),
    protocol.Ack: attrgetter("subscription"),
    protocol.Nack: attrgetter("subscription"),
    protocol.Extend: attrgetter("subscription"),
}
"""The one name on which everything depends that such a call needs: it is enough to decide once."""
ADMINISTRATIVE = frozenset(
    {
        protocol.CreateTopic,
        protocol.AlterTopic,
        protocol.SplitPartition,
        protocol.DeleteTopic,
        protocol.CreateSubscription,
        protocol.CreateQueue,
        protocol.AlterSubscription,
        protocol.DeleteSubscription,
        protocol.Seek,
        protocol.Purge,
        protocol.Redrive,
        protocol.CreateToken,
        protocol.RevokeToken,
        protocol.MovePartition,
        protocol.TransferLead,
        protocol.Decommission,
    }
)
"""Calls that leave a line in the audit log also when they are carried out."""
