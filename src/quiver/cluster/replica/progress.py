"""How far one log of a partition has come on its leader and on each follower: pure.

Only what is synced counts, and a follower's log counts only as far as it has been compared with the
leader's in this epoch. Invariant: the watermark never goes back.
"""

from __future__ import annotations

from collections.abc import Iterable

from quiver.cluster.records import NodeId
from quiver.cluster.replica.epochs import NO_EPOCH, EpochEnd, EpochHistory
from quiver.cluster.replica.messages import Fetch
from quiver.model.ids import Offset


class LogProgress:
    def __init__(
        self,
        history: EpochHistory,
        *,
        start: Offset,
        end: Offset,
        durable: Offset,
        watermark: Offset,
    ) -> None:
        """``end`` is where the new leader's epoch begins."""
        self.history = history
        self.start = start
        self.end = end
        self.epoch_start = end
        self.durable = durable
        self.watermark = watermark
        self._synced: dict[NodeId, Offset] = {}

    @property
    def recovered(self) -> bool:
        """Whether everything of earlier epochs is known to be committed."""
        return self.watermark >= self.epoch_start

    def divergence(self, fetch: Fetch) -> EpochEnd | None:
        """Where the two logs may still agree, if the follower's is not a part of this one."""
        if fetch.last_epoch == NO_EPOCH and fetch.offset <= self.end:
            return None  # it has nothing that could disagree
        end = self.history.end_of(fetch.last_epoch, self.start, self.end)
        agrees = end.epoch == fetch.last_epoch and fetch.offset <= end.offset
        return None if agrees else end

    def count(self, fetch: Fetch) -> None:
        """Note how far a follower is, whose log has been found to be a part of this one."""
        known = self._synced.get(fetch.node, Offset(0))
        self._synced[fetch.node] = max(known, self.counted(fetch))

    def counted(self, fetch: Fetch) -> Offset:
        return min(fetch.synced, fetch.offset)

    def forget(self, node: NodeId) -> None:
        self._synced.pop(node, None)

    def synced(self, node: NodeId) -> Offset | None:
        return self._synced.get(node)

    def has_caught_up(self, node: NodeId) -> bool:
        """Whether a follower has all that any earlier leader may have confirmed, and this one."""
        synced = self._synced.get(node)
        return synced is not None and synced >= max(self.epoch_start, self.watermark)

    def advance(self, followers: Iterable[NodeId]) -> bool:
        """Move the watermark to where the leader and all these followers are; whether it moved."""
        reached = self.durable
        for node in followers:
            synced = self._synced.get(node)
            if synced is None:
                return False
            reached = min(reached, synced)
        moved = reached > self.watermark
        self.watermark = max(self.watermark, reached)
        return moved
