"""Consumer groups: members, their heartbeats and the partitions they read."""

from __future__ import annotations

from quiver.protocol.base import Reply, Request


class Heartbeat(Request, tag="heartbeat"):
    """A member of a group is alive, and joins it if it has not done so."""

    subscription: str
    consumer: str


class GroupMembership(Reply, tag="membership"):
    """The partitions that the member reads, as ``topic/partition``."""

    partitions: list[str]


class Leave(Request, tag="leave"):
    """A consumer ends: what it holds is ready again at once, and its partitions go to others."""

    subscription: str
    consumer: str
