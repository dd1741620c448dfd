"""What a call may need: permissions on topics, on subscriptions and on the cluster.

The table of calls says which of these each call needs, and hands that to the authority as a ``Rule``.
Everything here is pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from quiver.edge.auth.permissions import Need, Permission, ResourceKind

PUBLISH = (Permission.PUBLISH,)
CONSUME = (Permission.CONSUME,)
ADMIN = (Permission.ADMIN,)
SEE = tuple(Permission)
"""Whoever may do something with a thing may see it."""
CLUSTER_ADMIN = Need(ADMIN, ResourceKind.CLUSTER, "*")
CLUSTER_WATCH = Need((Permission.CONSUME, Permission.ADMIN), ResourceKind.CLUSTER, "*")

Needs = tuple[Need, ...]


class Definitions(msgspec.Struct, frozen=True, kw_only=True):
    """What is defined on the node, as far as permissions depend on it."""

    is_queue: Callable[[str], bool] = lambda _: False
    """Whether there is a queue of that name."""
    shared_dead_letters: Callable[[str], str | None] = lambda _: None
    """The dead-letter queue of a subscription, if it may hold letters of others too."""


NeedsOf = Callable[[Any, Definitions], Needs]
"""All that a request needs."""


class Rule(Protocol):
    """What the authority has to know of a call."""

    @property
    def needs(self) -> NeedsOf: ...

    @property
    def subject(self) -> Callable[[Any], str] | None:
        """The one name on which all depends that the call needs: it is decided once for each name."""

    @property
    def is_metered(self) -> bool:
        """Whether the call counts towards the caller's rates."""

    @property
    def is_for_peers(self) -> bool:
        """Whether another node may send it, for itself or for one of its clients."""


def topic(permissions: tuple[Permission, ...], name: str) -> Need:
    return Need(permissions, ResourceKind.TOPIC, name)


def subscription(permissions: tuple[Permission, ...], name: str) -> Need:
    return Need(permissions, ResourceKind.SUBSCRIPTION, name)


def nothing(_: Any, __: Definitions) -> Needs:
    """Knowing who asks is enough. Listings leave out what the caller may not see."""
    return ()


def on_topic(permissions: tuple[Permission, ...], field: str = "topic") -> NeedsOf:
    return lambda request, _: (topic(permissions, getattr(request, field)),)


def on_subscription(permissions: tuple[Permission, ...], field: str = "subscription") -> NeedsOf:
    return lambda request, _: (subscription(permissions, getattr(request, field)),)


def cluster_admin(_: Any, __: Definitions) -> Needs:
    return (CLUSTER_ADMIN,)


def cluster_watch(_: Any, __: Definitions) -> Needs:
    """Metrics name every topic and subscription."""
    return (CLUSTER_WATCH,)
