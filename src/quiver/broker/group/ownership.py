"""Which member owns which partition, under which epoch.

Invariants: a partition has at most one owner, and the epochs of its grants strictly increase.
"""

from __future__ import annotations

from quiver.broker.group.values import (
    NOTHING,
    Assignments,
    GrantEpoch,
    MemberId,
    Owner,
    PartitionKey,
)


class Ownership:
    def __init__(self) -> None:
        self.owners: dict[PartitionKey, MemberId] = {}
        self._held: dict[MemberId, dict[PartitionKey, GrantEpoch]] = {}
        self._last_epochs: dict[PartitionKey, GrantEpoch] = {}

    def of(self, partition: PartitionKey) -> Owner | None:
        member = self.owners.get(partition)
        return None if member is None else Owner(member, self._held[member][partition])

    def held_by(self, member: MemberId) -> Assignments:
        return self._held.get(member, NOTHING)

    def last_epoch(self, partition: PartitionKey) -> GrantEpoch:
        """The epoch of the partition's newest grant, whether it is over or not."""
        return self._last_epochs.get(partition, GrantEpoch(0))

    def grant(self, partition: PartitionKey, member: MemberId, epoch: GrantEpoch) -> None:
        assert partition not in self.owners, "one owner at a time"
        assert epoch > self.last_epoch(partition), "epochs strictly increase"
        self.owners[partition] = member
        self._held.setdefault(member, {})[partition] = epoch
        self._last_epochs[partition] = epoch

    def release(self, partition: PartitionKey) -> Owner:
        member = self.owners.pop(partition)
        held = self._held[member]
        epoch = held.pop(partition)
        if not held:
            del self._held[member]
        return Owner(member, epoch)

    def forget(self, partition: PartitionKey) -> None:
        """The partition is gone for good."""
        assert partition not in self.owners, "release it first"
        self._last_epochs.pop(partition, None)
