"""The replicas of a topic: placed when the topic is created, changed and removed with it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quiver.broker.partition.replicated_placement import ReplicatedPlacement, partition_id
from quiver.broker.topics.catalog import TopicRecord
from quiver.cluster.control.controller import new_partition
from quiver.cluster.control.operations import deletion, machines_of, resized, sites_of
from quiver.cluster.control.placement import place
from quiver.cluster.metadata.store import Delete, Expect, Put
from quiver.cluster.node import ClusterNode
from quiver.cluster.records import PartitionId, PartitionRecord, decode, encode, partition_key
from quiver.errors import InvalidSetting, NotEnoughReplicas
from quiver.model.topic import Durability, TopicSettings

REPLICAS = 3
"""How many there are of each partition, unless its topic says otherwise or there are fewer machines."""


class ReplicatedTopics:
    """The ``TopicHooks`` of a cluster."""

    def __init__(self, cluster: ClusterNode, placement: ReplicatedPlacement) -> None:
        self._cluster = cluster
        self._placement = placement

    def on_create(self, record: TopicRecord) -> Sequence[Put]:
        state, settings = self._cluster.view.state, record.settings
        sites = sites_of(state)
        replicas = self._replicas(settings)
        wanted = {key: len(one.record.replicas) for key, one in state.partitions.items()}
        current = {key: one.record.replicas for key, one in state.partitions.items()}
        new = [partition_id(record, index) for index in range(len(record.first_hashes))]
        placed = place(wanted | dict.fromkeys(new, replicas), sites, current, pinned=current)
        puts = []
        for partition in new:
            first = new_partition(
                placed[partition],
                state.sessions(),
                min_in_sync=_min_in_sync(settings, replicas),
                allow_data_loss=settings.allow_data_loss,
            )
            assert first is not None, "the nodes that were chosen live"
            puts.append(Put(partition_key(partition), encode(first)))
        return puts

    def _replicas(self, settings: TopicSettings) -> int:
        """How many replicas the settings ask for; ``NotEnoughReplicas`` if there are fewer nodes."""
        nodes = len(sites_of(self._cluster.view.state))
        replicas = settings.replicas or min(REPLICAS, machines_of(self._cluster.view.state))
        if not nodes or replicas > nodes:
            raise NotEnoughReplicas(
                f"{replicas} replicas need {replicas} nodes and the cluster has {nodes}: add nodes or "
                "ask for fewer replicas"
            )
        return replicas

    async def on_alter(
        self, old: TopicRecord, new: TopicRecord
    ) -> Sequence[tuple[Expect, Put | None]]:
        """Another number of replicas is written into the partitions; the controller does the rest."""
        if _kept_by(old.settings) == _kept_by(new.settings):
            return ()
        changes = []
        for index in range(len(new.first_hashes)):
            key = partition_key(partition_id(new, index))
            entry = await self._cluster.store.get(key)
            if entry is None:
                continue
            record = self._resized(decode(entry.value, PartitionRecord), old.settings, new.settings)
            changes.append((Expect(key, entry.revision), Put(key, encode(record))))
        return changes

    def _resized(
        self, record: PartitionRecord, old: TopicSettings, new: TopicSettings
    ) -> PartitionRecord:
        wanted = record.wanted or len(record.replicas)
        if new.replicas != old.replicas:
            wanted = self._replicas(new)
        changed = resized(record, wanted, _min_in_sync(new, wanted))
        # Who is away may have lost what was not synced, and would not know that it mattered.
        eligible = changed.eligible if new.durability is old.durability else ()
        return msgspec.structs.replace(
            changed, eligible=eligible, allow_data_loss=new.allow_data_loss
        )

    async def on_split(
        self, new: TopicRecord, index: int, term: int
    ) -> Sequence[tuple[Expect, Put | None]]:
        """The new partition is placed like one of a new topic; the old one is as it was.

        Whoever leads the old one later is elected after this, and so knows of the split.
        """
        key = partition_key(partition_id(new, index))
        entry = await self._cluster.store.get(key)
        parent = None if entry is None else decode(entry.value, PartitionRecord)
        own = self._cluster.membership.record.id, self._cluster.membership.session, term
        if entry is None or parent is None or (parent.leader, parent.session, parent.epoch) != own:
            raise self._placement.not_leader(new, index)
        child = partition_id(new, len(new.first_hashes) - 1)
        record = self._beside(parent, child)
        first = partition_key(child)
        return [(Expect(first, 0), Put(first, encode(record))), (Expect(key, entry.revision), None)]

    def _beside(self, parent: PartitionRecord, child: PartitionId) -> PartitionRecord:
        """The first record of a partition that has as many replicas as another."""
        state = self._cluster.view.state
        wanted = parent.wanted or len(parent.replicas)
        sizes = {key: len(one.record.replicas) for key, one in state.partitions.items()}
        current = {key: one.record.replicas for key, one in state.partitions.items()}
        placed = place(sizes | {child: wanted}, sites_of(state), current, pinned=current)
        replicas = placed[child]
        if len(replicas) < parent.min_in_sync:
            raise NotEnoughReplicas(
                f"{parent.min_in_sync} replicas must be in sync and only {len(replicas)} nodes are "
                "available: try again when more nodes are up"
            )
        first = new_partition(
            replicas,
            state.sessions(),
            min_in_sync=parent.min_in_sync,
            wanted=wanted,
            allow_data_loss=parent.allow_data_loss,
        )
        assert first is not None, "the nodes that were chosen live"
        return first

    def on_delete(self, record: TopicRecord) -> Sequence[Put | Delete]:
        state = self._cluster.view.state
        changes: list[Put | Delete] = []
        for index in range(len(record.first_hashes)):
            partition = partition_id(record, index)
            versioned = state.partitions.get(partition)
            if versioned is not None:
                changes += deletion(partition, versioned)[1]
        return changes


def _min_in_sync(settings: TopicSettings, replicas: int) -> int:
    wanted = settings.min_in_sync or replicas // 2 + 1
    if wanted > replicas:
        raise InvalidSetting(
            f"min_in_sync ({wanted}) must not be above replicas ({replicas})",
            setting="min_in_sync",
        )
    return wanted


def _kept_by(settings: TopicSettings) -> tuple[int | None, int | None, bool, Durability]:
    """What a topic says of its replicas."""
    return (
        settings.replicas,
        settings.min_in_sync,
        settings.allow_data_loss,
        settings.durability,
    )
