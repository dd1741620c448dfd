"""A consumer group: its members, and which member owns which partition. A pure machine.

A rebalance does not stop the group. A partition that moves is first revoked: its owner finishes or
releases its messages and confirms, or times out, or leaves. Only then is it granted to another member.
All other partitions are read meanwhile. Invariant: a partition has at most one owner, and each grant has
a higher epoch than the one before, which fences late requests of the old owner.

Calls that change something return the changes, for the driver to act on and to log. Each call is given
the time; a time that goes back counts as the latest one seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from quiver.broker.group.assignment import Assignment, assign
from quiver.broker.group.deadlines import Deadlines
from quiver.broker.group.ownership import Ownership
from quiver.broker.group.values import (
    NOTHING,
    Asked,
    Assignments,
    Change,
    Granted,
    GrantEpoch,
    GroupSettings,
    Interests,
    MemberId,
    MemberJoined,
    MemberLeft,
    Owner,
    PartitionKey,
    Reason,
    Revoked,
    Spared,
    View,
)
from quiver.errors import Overloaded
from quiver.model.ids import Microseconds
from quiver.model.topic import checked_name

MEMBERS_MAX = 10_000


class GroupMachine:
    def __init__(self, settings: GroupSettings) -> None:
        self._now = Microseconds(0)
        self._epoch = GrantEpoch(0)
        self._partitions: list[PartitionKey] = []
        self._ownership = Ownership()
        self._targets: Assignment = {}
        self._interests: dict[MemberId, Interests] = {}
        self._sessions: Deadlines[MemberId] = Deadlines(settings.session_timeout_us)
        self._asked: Deadlines[PartitionKey] = Deadlines(settings.rebalance_timeout_us)

    # ------------------------------------------------------------------ what is there

    @property
    def members(self) -> frozenset[MemberId]:
        return frozenset(self._interests)

    @property
    def moving_count(self) -> int:
        """How many partitions were asked for and not yet given up."""
        return len(self._asked)

    def view(self, member_id: MemberId) -> View:
        held = self._ownership.held_by(member_id)
        return View(
            {partition: epoch for partition, epoch in held.items() if partition not in self._asked},
            {partition: epoch for partition, epoch in held.items() if partition in self._asked},
        )

    def owner_of(self, partition: PartitionKey) -> Owner | None:
        return self._ownership.of(partition)

    def may_ack(self, member_id: MemberId, partition: PartitionKey, epoch: GrantEpoch) -> bool:
        """Whether the grant is good: what was delivered under it may still be settled."""
        return self._ownership.held_by(member_id).get(partition) == epoch

    def may_receive(self, member_id: MemberId, partition: PartitionKey, epoch: GrantEpoch) -> bool:
        """Whether more may be delivered under the grant: it is good, and was not asked for."""
        return partition not in self._asked and self.may_ack(member_id, partition, epoch)

    # ------------------------------------------------------------------ members

    def join(
        self, member_id: MemberId, now: Microseconds, *, interests: Interests = None
    ) -> tuple[View, list[Change]]:
        """Take part in the group; to join again changes nothing but the interests."""
        self._advance(now)
        is_new = member_id not in self._interests
        if is_new:
            checked_name(member_id, "member")
            if len(self._interests) >= MEMBERS_MAX:
                raise Overloaded(
                    f"the group already has {MEMBERS_MAX:,} members, the most allowed: stop some first"
                )
        changes: list[Change] = [MemberJoined(member_id)] if is_new else []
        must_share = is_new or self._interests[member_id] != interests
        self._interests[member_id] = interests
        self._sessions.start(member_id, self._now)
        if must_share:
            changes += self._rebalance()
        return self.view(member_id), changes

    def heartbeat(
        self, member_id: MemberId, now: Microseconds, *, gave_up: Assignments = NOTHING
    ) -> tuple[View | None, list[Change]]:
        """The member is alive, and has given these grants up. ``None``: it has to join again."""
        self._advance(now)
        if member_id not in self._interests:
            return None, []
        self._sessions.start(member_id, self._now)
        changes: list[Change] = []
        for partition, epoch in gave_up.items():
            if self.may_ack(member_id, partition, epoch):
                changes.append(self._revoke(partition, Reason.GAVE_UP))
                changes += self._step(partition)
        return self.view(member_id), changes

    def leave(self, member_id: MemberId, now: Microseconds) -> list[Change]:
        """End the membership at once; what the member owned goes to others."""
        self._advance(now)
        if member_id not in self._interests:
            return []
        return [*self._remove(member_id, Reason.LEFT), *self._rebalance()]

    def _remove(self, member_id: MemberId, reason: Reason) -> Iterator[Change]:
        del self._interests[member_id]
        self._sessions.stop(member_id)
        yield MemberLeft(member_id, reason)
        for partition in sorted(self._ownership.held_by(member_id)):
            yield self._revoke(partition, reason)

    # ------------------------------------------------------------------ time and partitions

    def tick(self, now: Microseconds) -> list[Change]:
        """Do what is due: the silent expire, what was asked for is taken."""
        self._advance(now)
        changes: list[Change] = []
        for member_id in self._sessions.due(self._now):
            changes += self._remove(member_id, Reason.EXPIRED)
        if changes:
            changes += self._rebalance()
        for partition in self._asked.due(self._now):
            changes.append(self._revoke(partition, Reason.TOO_LATE))
            changes += self._step(partition)
        return changes

    def set_partitions(self, partitions: Iterable[PartitionKey], now: Microseconds) -> list[Change]:
        """All that the group reads from now on. Call it first, and when topics change."""
        self._advance(now)
        before, self._partitions = self._partitions, sorted(set(partitions))
        changes: list[Change] = []
        for partition in sorted(set(before).difference(self._partitions)):
            if self._ownership.of(partition) is not None:
                changes.append(self._revoke(partition, Reason.REMOVED))
            self._ownership.forget(partition)
        return changes + self._rebalance()

    def _advance(self, now: Microseconds) -> None:
        self._now = max(self._now, now)

    # ------------------------------------------------------------------ grants

    def _rebalance(self) -> list[Change]:
        self._targets = assign(self._partitions, self._interests, self._ownership.owners)
        return [change for partition in self._partitions for change in self._step(partition)]

    def _step(self, partition: PartitionKey) -> Iterator[Change]:
        """Bring a partition as near to the member that shall have it as can be now."""
        owner, target = self._ownership.of(partition), self._targets.get(partition)
        if owner is None:
            if target is not None:
                self._epoch = GrantEpoch(self._epoch + 1)
                yield self._grant(partition, target, self._epoch)
        elif owner.member == target:
            if self._asked.stop(partition):
                yield Spared(partition, *owner)
        elif partition not in self._asked:
            yield Asked(partition, *owner, self._asked.start(partition, self._now))

    def _grant(self, partition: PartitionKey, member: MemberId, epoch: GrantEpoch) -> Granted:
        assert member in self._interests, "only the living own"
        self._ownership.grant(partition, member, epoch)
        return Granted(partition, member, epoch)

    def _revoke(self, partition: PartitionKey, reason: Reason) -> Revoked:
        self._asked.stop(partition)
        return Revoked(partition, *self._ownership.release(partition), reason)
