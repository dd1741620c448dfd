"""A follower of one partition in one epoch: pure.

It asks for what comes after its own log, and turns each reply into one thing to do. It never cuts
its log but where its leader's epochs say that the two differ.
"""

from __future__ import annotations

import msgspec
from crc32c import crc32c

from quiver.cluster.records import NodeId, PartitionId, PartitionRecord, SessionId
from quiver.cluster.replica.epochs import EpochEnd, EpochHistory
from quiver.cluster.replica.messages import (
    Diverged,
    Entries,
    Fetch,
    FetchReply,
    Gone,
)
from quiver.errors import CorruptLog
from quiver.model.batch import StoredBatch
from quiver.model.envelope import entries_in
from quiver.model.ids import LeaderEpoch, Offset

_WAIT_SPREAD = 0.25
"""By how much the longest waits of logs differ."""


class Drop(msgspec.Struct, frozen=True):
    """What is before ``offset`` is to go, and all of that is committed: let the log begin there."""

    offset: Offset


class Append(msgspec.Struct, frozen=True):
    """Store these entries; once they are stored, everything before ``watermark`` is committed."""

    entries: list[StoredBatch]
    watermark: Offset
    then: Drop | None = None


class Cut(msgspec.Struct, frozen=True):
    """End the log at ``offset``: what follows is not the leader's."""

    offset: Offset


class BeginAnew(msgspec.Struct, frozen=True):
    """Drop the whole log and begin at ``offset``."""

    offset: Offset


class Pause(msgspec.Struct, frozen=True):
    """The other does not lead, as far as it knows: ask again a little later."""


class Ask(msgspec.Struct, frozen=True):
    """Nothing to do but to ask again."""


Step = Append | Drop | Cut | BeginAnew | Pause | Ask


class FollowedLog:
    """What a follower knows of one of its logs."""

    def __init__(
        self,
        history: EpochHistory,
        start: Offset,
        end: Offset,
        watermark: Offset,
        stored_from: Offset | None = None,
    ) -> None:
        self.history = history
        self.stored_from = start if stored_from is None else stored_from
        self.start = start
        self.end = end
        self.watermark = watermark
        self.dropped = start
        """Everything before it was dropped already."""


class Follower:
    def __init__(
        self,
        partition: PartitionId,
        node: NodeId,
        session: SessionId,
        record: PartitionRecord,
        logs: list[FollowedLog],
    ) -> None:
        self.leader = record.leader
        self.epoch = record.epoch
        self.logs = logs
        self._partition = partition
        self._node = node
        self._session = session

    def fetch(self, log: int, synced: Offset, wait_s: float = 0.5) -> Fetch:
        own = self.logs[log]
        return Fetch(
            partition=self._partition,
            log=log,
            node=self._node,
            session=self._session,
            epoch=self.epoch,
            offset=own.end,
            last_epoch=own.history.last_epoch,
            synced=synced,
            watermark=own.watermark,
            wait_s=wait_s,
            start=own.start,
        )

    def wait_share(self, log: int) -> float:
        """How much of the longest wait this log uses, so that not all logs ask at the same time."""
        name = f"{self._partition}/{log}/{self._node}".encode()
        return 1 - _WAIT_SPREAD * crc32c(name) / (1 << 32)

    def on_reply(self, log: int, asked: Fetch, reply: FetchReply) -> Step:
        """What to do about the answer to ``asked``; nothing, if the log has changed since."""
        own = self.logs[log]
        if reply.epoch != self.epoch or asked.offset != own.end or asked.epoch != self.epoch:
            return Pause()
        match reply:
            case Entries():
                return self._on_entries(own, reply)
            case Diverged():
                cut = self.cut_at(own, reply.end)
                return Cut(cut) if cut >= own.start else BeginAnew(Offset(0))
            case Gone():
                return BeginAnew(reply.start)
            case _:
                return Pause()

    def cut_at(self, own: FollowedLog, theirs: EpochEnd) -> Offset:
        """How far the logs can agree: the shorter of the two in the newest epoch they share."""
        ours = own.history.end_of(theirs.epoch, own.stored_from, own.end)
        return min(ours.offset, theirs.offset) if ours.epoch == theirs.epoch else ours.offset

    def _on_entries(self, own: FollowedLog, reply: Entries) -> Step:
        entries = entries_in(reply.data)
        offset, epoch = own.end, own.history.last_epoch
        for entry in entries:
            if entry.base_offset != offset or not epoch <= entry.epoch <= self.epoch:
                raise CorruptLog(
                    f"the leader sent offset {entry.base_offset:,} of epoch {entry.epoch} where "
                    f"{offset:,} of epoch {epoch} to {self.epoch} comes next"
                )
            offset, epoch = entry.next_offset, entry.epoch
        # Its watermark holds for its own log, of which ours is a part up to here.
        watermark = max(own.watermark, min(reply.watermark, offset))
        drop = _drop(own, reply.start) if reply.start <= watermark else None
        if entries:
            return Append(entries, watermark, drop)
        own.watermark = watermark
        return drop or Ask()


def _drop(own: FollowedLog, before: Offset) -> Drop | None:
    if before <= own.dropped:
        return None
    own.dropped = before
    return Drop(before)


def epoch_starts(entries: list[StoredBatch], last: LeaderEpoch) -> list[tuple[LeaderEpoch, Offset]]:
    """The epochs that begin among these entries, which follow an entry of ``last``."""
    starts = []
    for entry in entries:
        if entry.epoch != last:
            last = entry.epoch
            starts.append((entry.epoch, entry.base_offset))
    return starts
