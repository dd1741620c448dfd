"""How far one log of a partition has come on its leader and on each follower: pure.

Only what is synced counts, and a follower's log counts only as far as it has been compared with the
leader's in this epoch. Invariant: the watermark never goes back.

Where the log begins is agreed in the same way: the leader's readers see a start once the logs of all
replicas in sync begin there, so that no later leader's log begins before it.
"""

from __future__ import annotations

from collections.abc import Iterable

from quiver.cluster.records import NodeId
from quiver.cluster.replica.epochs import NO_EPOCH, EpochEnd, EpochHistory
from quiver.cluster.replica.messages import Fetch
from quiver.model.ids import Offset

_ANY_START = Offset((1 << 63) - 1)
"""Of a follower that does not say where its log begins."""


class LogProgress:
    def __init__(
        self,
        history: EpochHistory,
        *,
        start: Offset,
        end: Offset,
        durable: Offset,
        watermark: Offset,
        stored_from: Offset | None = None,
    ) -> None:
        """``end`` is where the new leader's epoch begins."""
        self.history = history
        self.stored_from = start if stored_from is None else stored_from
        """The first offset on the leader's disk: what is before the start is excluded."""
        self.start = start
        """Where followers are told to begin."""
        self.agreed_start = Offset(0)
        """The logs of all replicas in sync begin here or later."""
        self._first_start = start
        self.end = end
        self.epoch_start = end
        self.durable = durable
        self.watermark = watermark
        self._synced: dict[NodeId, Offset] = {}
        self._starts: dict[NodeId, Offset] = {}

    @property
    def recovered(self) -> bool:
        """Whether everything of earlier epochs is known to be committed, and where the log begins."""
        return self.watermark >= self.epoch_start and self.agreed_start >= self._first_start

    def divergence(self, fetch: Fetch) -> EpochEnd | None:
        """Where the two logs may still agree, if the follower's is not a part of this one."""
        if fetch.last_epoch == NO_EPOCH and fetch.offset <= self.end:
            return None  # it has nothing that could disagree
        end = self.history.end_of(fetch.last_epoch, self.stored_from, self.end)
        agrees = end.epoch == fetch.last_epoch and fetch.offset <= end.offset
        return None if agrees else end

    def count(self, fetch: Fetch) -> None:
        """Note how far a follower is, whose log has been found to be a part of this one."""
        known = self._synced.get(fetch.node, Offset(0))
        self._synced[fetch.node] = max(known, self.counted(fetch))
        self._starts[fetch.node] = _ANY_START if fetch.start is None else fetch.start

    def counted(self, fetch: Fetch) -> Offset:
        return min(fetch.synced, fetch.offset)

    def forget(self, node: NodeId) -> None:
        self._synced.pop(node, None)
        self._starts.pop(node, None)

    def synced(self, node: NodeId) -> Offset | None:
        return self._synced.get(node)

    def has_caught_up(self, node: NodeId) -> bool:
        """Whether a follower has all that any earlier leader may have confirmed, and this one."""
        synced = self._synced.get(node)
        return (
            synced is not None
            and synced >= max(self.epoch_start, self.watermark)
            and self._starts[node] >= self.agreed_start
        )

    def advance(self, followers: Iterable[NodeId]) -> bool:
        """Move the watermark to where the leader and all these followers are, and the start they
        agree on; whether one moved."""
        reached, agreed = self.durable, self.start
        for node in followers:
            synced = self._synced.get(node)
            if synced is None:
                return False
            reached = min(reached, synced)
            agreed = min(agreed, self._starts[node])
        moved = reached > self.watermark or agreed > self.agreed_start
        self.watermark = max(self.watermark, reached)
        self.agreed_start = max(self.agreed_start, agreed)
        return moved
