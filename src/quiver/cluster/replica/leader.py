"""The leader of one partition in one epoch: pure, time comes in with each call.

It judges fetches, keeps the watermark of each of the partition's logs, and decides who is in sync.
The in-sync set changes only by compare-and-swap, which the driver carries out: until the outcome is
known the watermark waits for everyone in the old set and in the new. A leader that learns of another
epoch, or of another session in its place, is deposed and confirms nothing more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from quiver.cluster.eligibility import with_in_sync
from quiver.cluster.records import (
    NodeId,
    PartitionRecord,
    SessionId,
    VersionedPartition,
)
from quiver.cluster.replica.messages import Diverged, Fetch, Gone, NotLeading
from quiver.cluster.replica.progress import LogProgress
from quiver.model.ids import LeaderEpoch, Offset


class LeaderSettings(msgspec.Struct, frozen=True, kw_only=True):
    lag_seconds_max: float = 3.0
    """A follower that has not been at the leader's end for this long is out of sync."""


class Proposal(msgspec.Struct, frozen=True):
    """Put ``record`` in the place of the one at ``revision``, if that is still there.

    And if those who join are still the processes that have caught up: another may have lost its disk.
    """

    record: PartitionRecord
    revision: int
    joined: tuple[tuple[NodeId, SessionId], ...] = ()


class Serve(msgspec.Struct, frozen=True):
    """Answer the fetch with entries from its offset on."""


Verdict = Serve | Diverged | Gone | NotLeading


class KnownFollower(msgspec.Struct):
    """What a leader knows of one process that follows it."""

    session: SessionId
    heard_at: float
    """When it last asked: until then it knew of no later epoch."""
    ends_seen: list[Offset]
    """Of each log, the leader's end when this follower was last answered."""
    caught_up_at: list[float]
    """Of each log, when the follower was last at the end that it had been told of."""
    held: list[int]
    """Of each log, how many of its fetches wait for something new: it has all that there is."""

    def seconds_behind(self, now: float) -> float:
        return max(
            0.0 if held else now - caught_up_at
            for held, caught_up_at in zip(self.held, self.caught_up_at, strict=True)
        )


class Leader:
    def __init__(
        self,
        node: NodeId,
        versioned: VersionedPartition,
        logs: Sequence[LogProgress],
        now: float,
        settings: LeaderSettings,
    ) -> None:
        self.node = node
        self.record = versioned.record
        self.revision = versioned.revision
        self.logs = logs
        self.deposed = False
        self.lease_until = now
        """Until then the session under which this leads cannot have ended."""
        self._settings = settings
        self._pending: Proposal | None = None
        self._sessions: dict[NodeId, SessionId] = {}
        self._followers: dict[NodeId, KnownFollower] = {}
        self._suspects: set[NodeId] = set()
        self._began = now

    @property
    def epoch(self) -> LeaderEpoch:
        return self.record.epoch

    @property
    def pending(self) -> Proposal | None:
        return self._pending

    # ------------------------------------------------------------------ what the cluster says

    def on_record(self, versioned: VersionedPartition) -> None:
        """The partition's record as the metadata store has it now."""
        if versioned.revision < self.revision:
            return
        if not self._is_mine(versioned.record):
            self.deposed = True
            return
        left = set(self.record.in_sync) - set(versioned.record.in_sync)
        for node in sorted(left):
            self._forget(node)
        self.record = versioned.record
        self.revision = versioned.revision
        if self._pending is not None and self._pending.revision < versioned.revision:
            self._pending = None  # it was made, or it never will be

    def on_sessions(self, sessions: Mapping[NodeId, SessionId]) -> None:
        """Which processes live: what an earlier process of a node said counts no more."""
        self._sessions = dict(sessions)
        for node, follower in list(self._followers.items()):
            if self._sessions.get(node) != follower.session:
                self._forget(node)

    def suspect(self, node: NodeId) -> None:
        """Its process seems to have ended: out of sync, unless it asks again."""
        self._suspects.add(node)

    def _is_mine(self, record: PartitionRecord) -> bool:
        mine = (self.node, self.record.session, self.record.epoch)
        return (record.leader, record.session, record.epoch) == mine

    def _forget(self, node: NodeId) -> None:
        self._followers.pop(node, None)
        for log in self.logs:
            log.forget(node)

    # ------------------------------------------------------------------ fetches

    def on_fetch(self, fetch: Fetch, now: float) -> Verdict:
        log = self.logs[fetch.log]
        if not self._accepts(fetch):
            return NotLeading(epoch=self.epoch)
        if fetch.offset < log.stored_from:
            return Gone(epoch=self.epoch, start=log.stored_from)
        end = log.divergence(fetch)
        if end is not None:
            return Diverged(epoch=self.epoch, end=end)
        self._note(fetch, now)
        log.count(fetch)
        return Serve()

    def _accepts(self, fetch: Fetch) -> bool:
        if fetch.epoch > self.epoch:
            self.deposed = True
        return (
            not self.deposed
            and fetch.epoch == self.epoch
            and fetch.node in self.record.replicas
            and self._sessions.get(fetch.node) == fetch.session
        )

    def _note(self, fetch: Fetch, now: float) -> None:
        follower = self._followers.get(fetch.node)
        if follower is None:
            ends = [log.end for log in self.logs]
            follower = KnownFollower(
                fetch.session, now, ends, [self._began] * len(ends), [0] * len(ends)
            )
            self._followers[fetch.node] = follower
        follower.heard_at = now
        self._suspects.discard(fetch.node)
        if fetch.offset >= follower.ends_seen[fetch.log]:
            follower.ends_seen[fetch.log] = self.logs[fetch.log].end
            follower.caught_up_at[fetch.log] = now

    def hold(self, fetch: Fetch) -> KnownFollower:
        """A fetch that was found good waits from now on, as there is nothing new for it."""
        follower = self._followers[fetch.node]
        follower.held[fetch.log] += 1
        return follower

    def knows(self, node: NodeId, follower: KnownFollower) -> bool:
        """Whether what was known of this follower still counts."""
        return self._followers.get(node) is follower

    def release(self, follower: KnownFollower, log: int, now: float) -> None:
        """It waits no longer; up to this moment the follower had everything."""
        follower.held[log] -= 1
        follower.caught_up_at[log] = now

    # ------------------------------------------------------------------ the watermark

    def advance(self, now: float) -> bool:
        """Move the watermarks of all logs as far as they may go; whether one moved."""
        moved = [self.advance_log(index, now) for index in range(len(self.logs))]
        return any(moved)

    def advance_log(self, index: int, now: float) -> bool:
        """Move the watermark of one log as far as it may go; whether it moved."""
        if self.deposed or not self.enough_in_sync():
            return False
        waited_for = self._waited_for()
        # Followers prove the epoch by fetching in it; who is alone has only the lease.
        if not waited_for and now >= self.lease_until:
            return False
        return self.logs[index].advance(waited_for)

    def enough_in_sync(self) -> bool:
        return len(self.record.in_sync) >= self.record.min_in_sync

    def is_agreed(self, end: Offset, log: int) -> bool:
        """Whether a log ends at ``end`` at most here, and on everybody who may lead after this one."""
        progress = self.logs[log]
        if self.deposed or progress.end > end or not self.enough_in_sync():
            return False
        return all(progress.has_caught_up(node) for node in self._waited_for())

    def _waited_for(self) -> list[NodeId]:
        """Everyone who is, or may already be, in the in-sync set: but for the leader."""
        members = set(self.record.in_sync)
        if self._pending is not None:
            members |= set(self._pending.record.in_sync)
        return sorted(members - {self.node})

    def is_proven(self, now: float) -> bool:
        """Whether this may act as the leader at ``now``, as far as it can know.

        With its lease, or with every in-sync follower heard of within the time of its patience. What
        it confirms needs more than that; what it serves may be this much out of date.
        """
        if self.deposed:
            return False
        if now < self.lease_until:
            return True
        waited_for = self._waited_for()
        return bool(waited_for) and all(
            node in self._followers
            and now - self._followers[node].heard_at <= self._settings.lag_seconds_max
            for node in waited_for
        )

    # ------------------------------------------------------------------ the passing of time

    def wait_s_max(self, now: float) -> float:
        """How long a fetch may be kept waiting, as far as the proof of the epoch goes.

        While the lease is being renewed, for ever. When it is not, followers are soon to be the only
        proof, and only by asking again and again.
        """
        patience = self._settings.lag_seconds_max
        return patience / 4 if self.lease_until - now < patience / 2 else math.inf

    def awaits_lease(self, index: int) -> bool:
        """Whether what is synced of a log only needs the lease to be renewed: this node is alone."""
        log = self.logs[index]
        return log.watermark < log.durable and not self._waited_for()

    def is_restless(self) -> bool:
        """Whether time alone may change something; otherwise only news of others can."""
        others = [node for node in self.record.in_sync if node != self.node]
        if not others:
            return any(log.watermark < log.durable for log in self.logs)
        return not all(self._is_held(node) for node in others)

    def _is_held(self, node: NodeId) -> bool:
        follower = self._followers.get(node)
        return follower is not None and all(follower.held)

    def _is_recent(self, node: NodeId, now: float) -> bool:
        follower = self._followers.get(node)
        behind = now - self._began if follower is None else follower.seconds_behind(now)
        return behind <= self._settings.lag_seconds_max

    # ------------------------------------------------------------------ the in-sync set

    def propose(self, now: float) -> Proposal | None:
        """The change of the in-sync set that is due, if none is under way."""
        if self.deposed or self._pending is not None:
            return None
        in_sync = tuple(node for node in self.record.replicas if self._belongs(node, now))
        if set(in_sync) == set(self.record.in_sync):
            return None
        joined = tuple(
            (node, self._followers[node].session)
            for node in in_sync
            if node != self.node and node not in self.record.in_sync
        )
        self._pending = Proposal(with_in_sync(self.record, in_sync), self.revision, joined)
        return self._pending

    def abandon(self, proposal: Proposal, node: NodeId) -> None:
        """The process of a node that was to join has ended, so the proposal can never be made."""
        if self._pending is proposal:
            self._pending = None
        self._forget(node)

    def _belongs(self, node: NodeId, now: float) -> bool:
        if node == self.node:
            return True
        if node in self.record.in_sync:
            return node not in self._suspects and self._is_recent(node, now)
        return self._may_join(node)

    def _may_join(self, node: NodeId) -> bool:
        return all(log.has_caught_up(node) for log in self.logs)
