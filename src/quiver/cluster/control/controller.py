"""What one node does for the whole cluster: elect leaders, bring replicas where they belong. Pure.

``Controller.step`` looks at the cluster and gives the changes that are due, at most one for each
partition. Each is made by compare-and-swap against the revision it was decided on, and together with
the controller's own key, so that a controller that was replaced changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

import msgspec

from quiver.cluster.control.placement import Assignment, Site, place
from quiver.cluster.election import elected, is_led
from quiver.cluster.eligibility import with_in_sync
from quiver.cluster.records import (
    NodeId,
    PartitionId,
    PartitionRecord,
    SessionId,
    VersionedPartition,
    moving,
)
from quiver.cluster.state import ClusterState

Reason = Literal["election", "data loss", "node lost", "move", "moved", "rebalance"]


class ControllerSettings(msgspec.Struct, frozen=True, kw_only=True):
    transfers_max: int = 8
    """How many partitions are given back to the leader they should have, in one round."""
    transfer_interval_s: float = 5.0
    moves_max: int = 8
    """How many partitions are moved between nodes at a time."""
    replace_after_s: float = 600.0
    """How long a node may be away before others get what it holds."""


class Change(msgspec.Struct, frozen=True):
    partition: PartitionId
    record: PartitionRecord
    revision: int
    reason: Reason


class Controller:
    def __init__(self, settings: ControllerSettings, now: float) -> None:
        self._settings = settings
        self._seen: dict[NodeId, tuple[str, float]] = {}
        self._transferred = now
        self._began = now
        self._settled: tuple[object, ...] = ()
        self._placed: tuple[tuple[object, ...], Assignment] = ((), {})

    def step(self, state: ClusterState, now: float) -> list[Change]:
        """All changes that are due now; what is broken comes first, and alone."""
        for node in state.nodes.values():
            if node.role == "full":
                self._seen[node.id] = (node.zone, now)
        sites = self._sites(state, now)
        if self._is_settled(state, sites):
            return []
        alive, avoided = state.sessions(), state.avoided()
        repairs = [
            change
            for partition, versioned in state.partitions.items()
            if (change := self._repair(partition, versioned, alive, avoided)) is not None
        ]
        if repairs:
            return repairs
        settles = now - self._transferred >= self._settings.transfer_interval_s
        due: dict[PartitionId, Change] = {}
        if self._misses_somebody(state, now):
            settles = False
        else:
            due = {change.partition: change for change in self._moves(state, sites)}
        for change in self._transfers(state, alive, now):
            due.setdefault(change.partition, change)
        if settles and not due:
            self._settled = (state.partitions, state.nodes, state.draining, sites)
        return list(due.values())

    def _is_settled(self, state: ClusterState, sites: list[Site]) -> bool:
        """Whether nothing was due before and nothing has changed: a view keeps what it can."""
        if not self._settled:
            return False
        partitions, nodes, draining, known = self._settled
        return (
            partitions is state.partitions
            and nodes is state.nodes
            and draining is state.draining
            and known == sites
        )

    # ------------------------------------------------------------------ electing

    def _repair(
        self,
        partition: PartitionId,
        versioned: VersionedPartition,
        alive: Mapping[NodeId, SessionId],
        avoided: Collection[NodeId],
    ) -> Change | None:
        record = versioned.record
        if not is_led(record, alive):
            successor = elected(record, alive, avoided)
            if successor is None:
                return None
            whole = {*record.in_sync, *record.eligible} - {*record.lost}
            clean = successor.leader in whole
            reason: Reason = "election" if clean else "data loss"
            return Change(partition, successor, versioned.revision, reason)
        in_sync = tuple(node for node in record.in_sync if node in alive)
        if in_sync != record.in_sync:
            shrunk = with_in_sync(record, in_sync)
            return Change(partition, shrunk, versioned.revision, "node lost")
        if record.target and set(record.target) <= set(record.in_sync):
            moved = _moved(record, alive, avoided)
            return Change(partition, moved, versioned.revision, "moved")
        return None

    # ------------------------------------------------------------------ placing

    def _moves(self, state: ClusterState, sites: list[Site]) -> list[Change]:
        """Begin to move partitions whose replicas are not where they should be."""
        able = {site.node for site in sites}
        records = {partition: one.record for partition, one in state.partitions.items()}
        # A move to a node that is gone for good will never end: it is planned anew.
        under_way = {key for key, one in records.items() if one.target and able >= set(one.target)}
        room = self._settings.moves_max - len(under_way)
        if room <= 0:
            return []
        current = {key: one.target or one.replicas for key, one in records.items()}
        wanted = {key: one.wanted or len(current[key]) for key, one in records.items()}
        pinned = {key for key, one in records.items() if one.pinned and able >= set(current[key])}
        changes = []
        for partition, target in self._place(wanted, sites, current, pinned).items():
            record = records[partition]
            if partition in under_way or target == current[partition]:
                continue
            if len(target) < min(wanted[partition], len(current[partition])):
                continue  # there is nowhere to go to
            if set(target) == set(record.replicas):
                changed = msgspec.structs.replace(record, replicas=target, target=())
            else:
                changed = moving(record, target)
            revision = state.partitions[partition].revision
            changes.append(Change(partition, changed, revision, "move"))
        return changes[:room]

    def _place(
        self,
        wanted: dict[PartitionId, int],
        sites: list[Site],
        current: Assignment,
        pinned: set[PartitionId],
    ) -> Assignment:
        """Placing thousands takes a while: it is done again only if there is another question."""
        question = (wanted, sites, current, pinned)
        if self._placed[0] != question:
            self._placed = (question, place(wanted, sites, current, pinned))
        return self._placed[1]

    def _misses_somebody(self, state: ClusterState, now: float) -> bool:
        """Whether a node holds replicas that this controller has not seen yet, and may still see."""
        holders = {node for one in state.partitions.values() for node in one.record.replicas}
        waited = now - self._began >= self._settings.replace_after_s
        return not waited and not holders <= self._seen.keys()

    def _sites(self, state: ClusterState, now: float) -> list[Site]:
        """Nodes that may hold replicas: those away for a short while keep what they have."""
        return [
            Site(node, zone)
            for node, (zone, seen) in self._seen.items()
            if node not in state.draining and now - seen < self._settings.replace_after_s
        ]

    def _transfers(
        self, state: ClusterState, alive: Mapping[NodeId, SessionId], now: float
    ) -> list[Change]:
        """Give some partitions back to those who should lead them, or away from who is leaving or full."""
        if now - self._transferred < self._settings.transfer_interval_s:
            return []
        changes, avoided = [], state.avoided()
        for partition, versioned in state.partitions.items():
            record = versioned.record
            # A lead changes hands only while nothing else is wrong with the partition.
            if not is_led(record, alive) or set(record.in_sync) != set(record.replicas):
                continue
            better = elected(record, alive, avoided)
            if better is not None and better.leader != record.leader:
                changes.append(Change(partition, better, versioned.revision, "rebalance"))
        if changes:
            self._transferred = now
        return changes[: self._settings.transfers_max]


def _moved(
    record: PartitionRecord, alive: Mapping[NodeId, SessionId], avoided: Collection[NodeId]
) -> PartitionRecord:
    """The record once all replicas are where they were to be."""
    stays = record.leader in record.target
    if not stays:
        within = with_in_sync(
            record, record.target, replicas=record.target, leader=record.target[0], target=()
        )
        successor = elected(within, alive, avoided)
        assert successor is not None, "whoever does not live is not in sync any more"
        return successor
    return with_in_sync(record, record.target, replicas=record.target, target=())


def new_partition(
    replicas: tuple[NodeId, ...],
    alive: Mapping[NodeId, SessionId],
    *,
    min_in_sync: int = 1,
    wanted: int = 0,
    allow_data_loss: bool = False,
) -> PartitionRecord | None:
    """The first record of a partition: everyone is in sync, as there is nothing yet."""
    assert replicas
    blank = PartitionRecord(
        replicas=replicas,
        leader=replicas[0],
        in_sync=replicas,
        wanted=wanted or len(replicas),
        min_in_sync=min_in_sync,
        allow_data_loss=allow_data_loss,
    )
    return elected(blank, alive)
