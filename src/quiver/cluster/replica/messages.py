"""What a follower asks its leader, and what it can be told.

A fetch carries where the follower's log ends and which epoch its last entry has: the leader compares
that with its own log before it counts or sends anything.
"""

from __future__ import annotations

import msgspec

from quiver.cluster.records import NodeId, PartitionId, SessionId
from quiver.cluster.replica.epochs import EpochEnd
from quiver.model.ids import LeaderEpoch, Offset


class Fetch(msgspec.Struct, frozen=True, kw_only=True, tag="Fetch"):
    partition: PartitionId
    log: int
    """Which of the partition's logs: 0 has the data, 1 the state of its subscriptions."""
    node: NodeId
    session: SessionId
    epoch: LeaderEpoch
    """The epoch under which the follower takes the receiver for its leader."""
    offset: Offset
    last_epoch: LeaderEpoch
    synced: Offset
    """Everything before this survives a crash of the follower."""
    watermark: Offset
    """What the follower knows to be committed: it is told at once when there is more."""
    wait_s: float = 0.5
    """How long the answer may be kept back for something new."""
    start: Offset | None = None
    """Where the follower's log begins, for good. Followers of earlier versions do not say."""


class Entries(msgspec.Struct, frozen=True, kw_only=True, tag="Entries"):
    """The leader's bytes from the fetch's offset on; none if there is nothing new."""

    epoch: LeaderEpoch
    watermark: Offset
    data: bytes
    start: Offset = Offset(0)
    """Where the log is to begin: the leader's does so once those of all replicas in sync do."""


class Diverged(msgspec.Struct, frozen=True, kw_only=True, tag="Diverged"):
    """The follower's log is not a part of the leader's: it must be cut first."""

    epoch: LeaderEpoch
    end: EpochEnd


class Gone(msgspec.Struct, frozen=True, kw_only=True, tag="Gone"):
    """What the follower wants is no longer stored: it must begin anew at ``start``."""

    epoch: LeaderEpoch
    start: Offset


class NotLeading(msgspec.Struct, frozen=True, kw_only=True, tag="NotLeading"):
    """The receiver does not lead the partition in that epoch, or does not know the sender."""

    epoch: LeaderEpoch
    """The newest epoch the receiver knows of."""


FetchReply = Entries | Diverged | Gone | NotLeading
