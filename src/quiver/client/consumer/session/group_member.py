"""A consumer as a member of a group: which partitions it reads, as the coordinator assigns them.

Where the coordinator may be another node than those that push, the consumer asks for its partitions
itself. It asks more often while they move.
"""

from __future__ import annotations

import contextlib
from typing import Protocol

from quiver.aio import Signal
from quiver.client.consumer.session.terms import SessionTerms
from quiver.client.transport.cluster import Cluster, expect
from quiver.errors import QuiverError
from quiver.model.subscription import Ordering
from quiver.protocol import Consuming, GroupMembership, Heartbeat, Leave

_MEMBERSHIP_S, _MOVING_S = 1.0, 0.1
"""How often, in a cluster, the member of a group asks which partitions it reads: also while they move."""
_MOVING_ASKS = 30
"""So many times it asks more often, after each change."""


class MemberStreams(Protocol):
    """The streams of the consumer."""

    consuming: Consuming
    moved: Signal

    def tell_partitions(self, partitions: list[str]) -> None:
        """Tell the nodes what the consumer reads."""


class GroupMember:
    """``partitions`` is what the consumer reads; ``None`` if the nodes know it themselves."""

    def __init__(self, cluster: Cluster, terms: SessionTerms, streams: MemberStreams) -> None:
        self.partitions: list[str] | None = None
        self._cluster = cluster
        self._terms = terms
        self._streams = streams

    @property
    def _is_elsewhere(self) -> bool:
        """Whether the consumer is one of a group whose coordinator may be another node."""
        consuming = self._streams.consuming
        is_alone = consuming.leads and not consuming.leaders
        is_alone = is_alone and self.partitions is None  # else the node goes by what it was told
        return consuming.ordering == Ordering.PARTITION and not is_alone

    async def stay(self) -> None:
        """Ask for the partitions again and again: often while they move."""
        asks, changed = _MOVING_ASKS, self._streams.moved
        while True:
            moved = changed.next_wake()
            if self._is_elsewhere and await self._ask():
                asks = _MOVING_ASKS
            if not moved.done():
                await changed.wait(_MOVING_S if asks else _MEMBERSHIP_S)
            asks = _MOVING_ASKS if moved.done() else max(0, asks - 1)

    async def leave(self) -> None:
        """Have the partitions go to others at once, if the coordinator may be another node."""
        if self._is_elsewhere:
            request = Leave(subscription=self._terms.subscription, consumer=self._terms.consumer)
            with contextlib.suppress(QuiverError):  # then they go when the session has timed out
                await self._cluster.call(request, repeatable=True, timeout_s=_MEMBERSHIP_S)

    async def _ask(self) -> bool:
        """Whether it reads other partitions than before."""
        request = Heartbeat(subscription=self._terms.subscription, consumer=self._terms.consumer)
        try:
            _, (reply, _) = await self._cluster.call(
                request, repeatable=True, timeout_s=_MEMBERSHIP_S
            )
        except QuiverError:
            return False
        partitions = expect(GroupMembership, reply).partitions
        if partitions == self.partitions:
            return False
        self.partitions = partitions
        self._streams.tell_partitions(partitions)
        return True
