"""Who leads a partition next: pure, and the same for controllers and for leaders that resign.

A leader comes from the in-sync set, which holds everything that was ever confirmed. Only a topic
that accepts the loss of data gets one from elsewhere, and only when nobody else is left.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from quiver.cluster.records import NOBODY, NodeId, PartitionRecord, SessionId
from quiver.model.ids import LeaderEpoch


def elected(
    record: PartitionRecord,
    alive: Mapping[NodeId, SessionId],
    avoided: Collection[NodeId] = (),
) -> PartitionRecord | None:
    """The record under a new leader and a new epoch; ``None`` if nobody may lead.

    Those in ``avoided`` lead only if nobody else can. Members that do not live leave the in-sync set.
    """
    in_sync = tuple(node for node in record.replicas if is_candidate(record, node, alive))
    if not in_sync and record.allow_data_loss:
        in_sync = tuple(node for node in record.replicas if node in alive)[:1]
    if not in_sync:
        return None
    leader = min(in_sync, key=lambda node: (node in avoided, record.replicas.index(node)))
    return msgspec.structs.replace(
        record,
        leader=leader,
        session=alive[leader],
        epoch=LeaderEpoch(record.epoch + 1),
        in_sync=in_sync,
        lost=(),
    )


def is_candidate(record: PartitionRecord, node: NodeId, alive: Mapping[NodeId, SessionId]) -> bool:
    return node in record.in_sync and node in alive and node not in record.lost


def is_led(record: PartitionRecord, alive: Mapping[NodeId, SessionId]) -> bool:
    """Whether the very process that was elected lives."""
    return record.session != NOBODY and alive.get(record.leader) == record.session


def resigned(
    record: PartitionRecord,
    node: NodeId,
    alive: Mapping[NodeId, SessionId],
    *,
    in_sync_no_more: bool,
) -> PartitionRecord:
    """The record once its leader has given up: under a successor if one lives, else under nobody.

    A leader whose log failed also leaves the in-sync set, unless it is alone in it.
    """
    others = {other: session for other, session in alive.items() if other != node}
    left = tuple(other for other in record.in_sync if other != node)
    kept = left if in_sync_no_more and left else record.in_sync
    successor = elected(msgspec.structs.replace(record, allow_data_loss=False), others)
    if successor is None:
        leader = record.leader if record.leader in kept else kept[0]
        return msgspec.structs.replace(record, leader=leader, session=NOBODY, in_sync=kept)
    in_sync = tuple(
        one for one in kept if one in successor.in_sync or (one == node and not in_sync_no_more)
    )
    return msgspec.structs.replace(
        successor, in_sync=in_sync, allow_data_loss=record.allow_data_loss
    )


def withdrawn(record: PartitionRecord, node: NodeId) -> PartitionRecord:
    """The record after a node has lost what it held: in sync no more, and if it led, nobody leads.

    If it was the last in sync it stays there, marked: it must not lead, and nobody else may.
    """
    left = tuple(other for other in record.in_sync if other != node)
    if not left:
        return msgspec.structs.replace(record, lost=(node,), session=NOBODY)
    if record.leader != node:
        return msgspec.structs.replace(record, in_sync=left)
    return msgspec.structs.replace(record, in_sync=left, leader=left[0], session=NOBODY)
