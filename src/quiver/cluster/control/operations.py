"""Changes that an operator asks of a partition: move, replica count, deletion. Pure.

Each function returns the new record. The caller writes it with a compare-and-swap on the old one. The
controller and the replicas do the rest.
"""

from __future__ import annotations

import msgspec

from quiver.cluster.control.placement import Site
from quiver.cluster.eligibility import with_in_sync
from quiver.cluster.metadata.store import Delete, Expect, Put
from quiver.cluster.records import (
    DeletedRecord,
    NodeId,
    PartitionId,
    PartitionRecord,
    VersionedPartition,
    deleted_key,
    encode,
    moving,
    partition_key,
)
from quiver.cluster.state import ClusterState
from quiver.errors import InvalidRequest


def sites_of(state: ClusterState) -> list[Site]:
    """The nodes that new partitions may be placed on."""
    return [
        Site(node.id, node.zone)
        for node in state.nodes.values()
        if node.role == "full" and node.id not in state.draining
    ]


def machines_of(state: ClusterState) -> int:
    """How many machines new partitions may be placed on: processes of one count as one."""
    nodes = [state.nodes[site.node] for site in sites_of(state)]
    return len({node.host or node.id for node in nodes})


def pinned_to(record: PartitionRecord, target: tuple[NodeId, ...]) -> PartitionRecord:
    """Move to these nodes, and stay there; the first is to lead."""
    if not target or len(set(target)) != len(target):
        raise InvalidRequest(f"name one or more nodes, each once: {target}")
    if len(target) < record.min_in_sync:
        raise InvalidRequest(
            f"{len(target)} nodes are fewer than the {record.min_in_sync} replicas that must be in sync"
        )
    placed = msgspec.structs.replace(record, pinned=True, wanted=len(target))
    if set(target) == set(record.replicas):
        return msgspec.structs.replace(placed, replicas=target, target=())
    return moving(placed, target)


def resized(record: PartitionRecord, wanted: int, min_in_sync: int) -> PartitionRecord:
    """Have so many replicas, of which so many must be in sync for a publish to be confirmed."""
    if not 1 <= min_in_sync <= wanted:
        raise InvalidRequest(
            f"min_in_sync must be between 1 and the number of replicas, {wanted}, not {min_in_sync}"
        )
    return with_in_sync(record, record.in_sync, wanted=wanted, min_in_sync=min_in_sync)


def deletion(
    partition: PartitionId, versioned: VersionedPartition
) -> tuple[list[Expect], list[Put | Delete]]:
    """What a commit expects and changes so that a partition is no more.

    Its record goes, and a list of those who still hold a replica takes its place: each of them drops
    its replica and takes itself off the list, now or when it is next started.
    """
    record = versioned.record
    holders = tuple(dict.fromkeys((*record.replicas, *record.target)))
    key = partition_key(partition)
    return (
        [Expect(key, versioned.revision)],
        [Delete(key), Put(deleted_key(partition), encode(DeletedRecord(holders)))],
    )


def is_drained(state: ClusterState, node: NodeId) -> bool:
    """Whether a node holds nothing any more, and nothing is on its way to it."""
    return all(
        node not in one.record.replicas and node not in one.record.target
        for one in state.partitions.values()
    )
