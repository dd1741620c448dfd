"""Who may lead once nobody in sync can: pure, and the one way to change an in-sync set.

Nothing is committed while fewer than ``min_in_sync`` replicas are in sync. So a replica that leaves a set
that is then too small has every committed message, and keeps having it until the set is whole again. Until
then it is *eligible*. Invariant: who is eligible has everything that any leader ever confirmed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from quiver.cluster.records import NodeId, PartitionRecord


def with_in_sync(
    record: PartitionRecord, in_sync: tuple[NodeId, ...], **changes: Any
) -> PartitionRecord:
    """The record with this in-sync set, with other ``changes``, and with those eligible who are then.

    Whoever leaves the in-sync set must still have its data; ``record.lost`` names those who have not.
    """
    changed = msgspec.structs.replace(record, in_sync=in_sync, eligible=(), **changes)
    return msgspec.structs.replace(changed, eligible=eligible_after(record, changed))


def eligible_after(before: PartitionRecord, after: PartitionRecord) -> tuple[NodeId, ...]:
    """Who is eligible after a change: nobody once enough are in sync to commit something."""
    if after.can_commit:
        return ()
    has_everything = {*before.in_sync, *before.eligible} - {*before.lost, *after.in_sync}
    return tuple(node for node in after.replicas if node in has_everything)


def without_eligible(record: PartitionRecord, node: NodeId) -> PartitionRecord:
    """The record when a node's data can no longer be counted on."""
    eligible = tuple(other for other in record.eligible if other != node)
    return msgspec.structs.replace(record, eligible=eligible)


def is_counted_on(record: PartitionRecord, node: NodeId) -> bool:
    """Whether somebody may be told that this node has everything that was committed."""
    return (node in record.in_sync and node not in record.lost) or node in record.eligible
