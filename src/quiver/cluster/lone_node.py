"""The only node of its etcd prefix: it registers, and sees to it that no second one serves.

Two nodes on the same metadata would both take themselves for the leader of every partition. So a
node that finds another registered does not start, and one that can no longer prove that it is
registered stops before the other could have started.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from quiver.cluster.membership import Membership
from quiver.cluster.metadata import MetadataStore
from quiver.cluster.records import NODES, NodeId, NodeRecord, SessionId
from quiver.errors import InvalidSetting, MetadataError
from quiver.model.clock import Clock
from quiver.version import __version__

_LOOK_SECONDS = 0.2


class LoneNode:
    """Use ``claim``, and ``release`` it."""

    def __init__(self, membership: Membership, clock: Clock, on_lost: Callable[[], None]) -> None:
        self._membership = membership
        self._clock = clock
        self._on_lost = on_lost
        self._session = membership.session
        membership.on_session = self._ended
        self._tasks = [asyncio.create_task(membership.keep()), asyncio.create_task(self._look())]

    @classmethod
    async def claim(
        cls,
        store: MetadataStore,
        clock: Clock,
        name: str,
        lease_seconds: int,
        on_lost: Callable[[], None],
    ) -> LoneNode:
        """``InvalidSetting`` if another node is registered under the same prefix."""
        record = NodeRecord(id=NodeId(name), version=__version__)
        membership = Membership(store, clock, record, lease_seconds)
        await membership.join()
        others = [
            node
            for entry in (await store.list(NODES)).entries
            if (node := entry.key.removeprefix(NODES)) != name
        ]
        if others:
            await membership.leave()
            raise InvalidSetting(
                f"node {others[0]!r} uses this etcd under the same prefix: give each node a "
                "metadata.prefix of its own, or stop the other"
            )
        return cls(membership, clock, on_lost)

    async def release(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        with contextlib.suppress(MetadataError):
            await self._membership.leave()

    async def _look(self) -> None:
        while self._clock.monotonic() < self._membership.proven_until:
            await self._clock.sleep(_LOOK_SECONDS)
        self._on_lost()

    def _ended(self, session: SessionId) -> None:
        if session != self._session:
            self._on_lost()
