"""Who leads a partition next: pure, and the same for controllers and for leaders that resign.

A leader comes from the in-sync set, or, if nobody there can lead, from those who are eligible: both
have everything that was ever confirmed. Only a topic that accepts the loss of data gets a leader from
elsewhere, and only when nobody else is left.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from quiver.cluster.eligibility import with_in_sync, without_eligible
from quiver.cluster.records import NOBODY, NodeId, PartitionRecord, SessionId
from quiver.model.ids import LeaderEpoch


def elected(
    record: PartitionRecord,
    alive: Mapping[NodeId, SessionId],
    avoided: Collection[NodeId] = (),
) -> PartitionRecord | None:
    """The record under a new leader and a new epoch; ``None`` if nobody may lead.

    Those in ``avoided`` lead only if nobody else can. Members that do not live leave the in-sync set.
    One who was eligible is alone in it, until others have caught up.
    """
    in_sync = tuple(node for node in record.replicas if is_candidate(record, node, alive))
    if in_sync:
        return _led_by(_first(record, in_sync, avoided), record, in_sync, alive)
    eligible = tuple(node for node in record.eligible if may_step_in(record, node, alive))
    if eligible:
        leader = _first(record, eligible, avoided)
        return _led_by(leader, record, (leader,), alive)
    living = tuple(node for node in record.replicas if node in alive)
    if living and record.allow_data_loss:
        leader = _first(record, living, record.lost)  # who lost its data has least of all
        successor = _led_by(leader, record, (leader,), alive)
        # Whoever comes back with more is cut to what this one has.
        return msgspec.structs.replace(successor, eligible=())
    return None


def _first(
    record: PartitionRecord, nodes: tuple[NodeId, ...], avoided: Collection[NodeId]
) -> NodeId:
    return min(nodes, key=lambda node: (node in avoided, record.replicas.index(node)))


def _led_by(
    leader: NodeId,
    record: PartitionRecord,
    in_sync: tuple[NodeId, ...],
    alive: Mapping[NodeId, SessionId],
) -> PartitionRecord:
    return with_in_sync(
        record,
        in_sync,
        leader=leader,
        session=alive[leader],
        epoch=LeaderEpoch(record.epoch + 1),
        lost=(),
    )


def is_candidate(record: PartitionRecord, node: NodeId, alive: Mapping[NodeId, SessionId]) -> bool:
    return node in record.in_sync and node in alive and node not in record.lost


def may_step_in(record: PartitionRecord, node: NodeId, alive: Mapping[NodeId, SessionId]) -> bool:
    """Whether a node may lead that is not in sync, because nobody who is can."""
    return node in record.eligible and node in alive


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

    A leader whose log failed also leaves the in-sync set, unless it is alone in it. What it had synced
    it still has.
    """
    others = {other: session for other, session in alive.items() if other != node}
    left = tuple(other for other in record.in_sync if other != node)
    kept = left if in_sync_no_more and left else record.in_sync
    successor = elected(msgspec.structs.replace(record, allow_data_loss=False), others)
    if successor is None:
        leader = record.leader if record.leader in kept else kept[0]
        return with_in_sync(record, kept, leader=leader, session=NOBODY)
    stays = {node} if successor.leader in record.in_sync and not in_sync_no_more else set()
    in_sync = tuple(one for one in record.replicas if one in {*successor.in_sync, *stays})
    return _led_by(successor.leader, record, in_sync, others)


def renewed(record: PartitionRecord) -> PartitionRecord:
    """The record under the same leader in a new epoch: all logs are compared again."""
    return msgspec.structs.replace(record, epoch=LeaderEpoch(record.epoch + 1))


def withdrawn(record: PartitionRecord, node: NodeId) -> PartitionRecord:
    """The record after a node has lost what it held: in sync no more, and if it led, nobody leads.

    If it was the last in sync it stays there, marked: it must not lead, and only who is eligible may.
    """
    if node not in record.in_sync:
        return without_eligible(record, node)
    left = tuple(other for other in record.in_sync if other != node)
    marked = msgspec.structs.replace(record, lost=(node,))
    if not left:
        return msgspec.structs.replace(marked, session=NOBODY)
    if record.leader != node:
        return with_in_sync(marked, left, lost=())
    return with_in_sync(marked, left, lost=(), leader=left[0], session=NOBODY)
