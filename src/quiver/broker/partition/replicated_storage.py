"""Partitions that several nodes keep together: this node serves those that it leads.

Two logs of each are replicated, the messages and what subscriptions did with them. A partition is
opened anew each time the node begins to lead it, from what is committed, and lost when that ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec
import structlog

from quiver.broker.delivery.snapshots import LoggedSnapshots
from quiver.broker.delivery.state_log import STATE_SETTINGS
from quiver.broker.partition.follower_log import FollowerLog
from quiver.broker.partition.partition import Partition
from quiver.broker.partition.replication_lag import ReplicationLag
from quiver.broker.topics.catalog import TopicRecord
from quiver.cluster.control.controller import new_partition
from quiver.cluster.control.operations import deletion, resized, sites_of
from quiver.cluster.control.placement import place
from quiver.cluster.metadata.store import Delete, Entry, Expect, Put
from quiver.cluster.node import ClusterNode
from quiver.cluster.records import (
    PARTITIONS,
    PartitionId,
    PartitionRecord,
    decode,
    encode,
    partition_key,
)
from quiver.cluster.replica.leader_driver import LeaderDriver
from quiver.cluster.replica.leader_log import LeaderLog
from quiver.cluster.replica.replica import Replica
from quiver.cluster.signal import Signal
from quiver.errors import InvalidSetting, NotEnoughReplicas, NotLeader
from quiver.log.log import Log
from quiver.log.partition_log import RunBlocking
from quiver.log.settings import LogSettings
from quiver.model.clock import Clock
from quiver.model.topic import TopicSettings
from quiver.protocol import ReplicaInfo

DATA, STATE = 0, 1
"""Which of a partition's logs is which."""
REPLICAS = 3
"""How many there are of each partition, unless its topic says otherwise or there are fewer nodes."""
_RECOVERY_TIMEOUT_S = 5.0
_BEGIN_TIMEOUT_S = 2.0
_LOOK_S = 0.5
"""How often it is looked whether this node is still the one that was elected."""

logger = structlog.get_logger()


def partition_id(record: TopicRecord, index: int) -> PartitionId:
    return PartitionId(f"{record.folder}/{index}")


class ReplicatedStorage:
    mends_itself = True

    def __init__(self, cluster: ClusterNode, clock: Clock, run_blocking: RunBlocking) -> None:
        self.version = 0
        self.on_lead: Callable[[PartitionId], None] = lambda partition: None
        """Called when this node begins to lead a partition."""
        self.replication: ReplicationLag | None = ReplicationLag(cluster)
        self._cluster = cluster
        self._clock = clock
        self._run_blocking = run_blocking
        self._on_lost: dict[PartitionId, Callable[[], None]] = {}
        self._begun = Signal(clock)
        self._altering: set[asyncio.Task[None]] = set()
        cluster.replica_manager.on_opened = self._opened

    def _opened(self, replica: Replica) -> None:
        replica.on_leading = lambda leading: self._began(replica.partition, leading)

    def _began(self, partition: PartitionId, leading: LeaderDriver) -> None:
        self.version += 1
        leading.on_over = lambda: self._ended(partition)
        logger.info("this node leads a partition", partition=partition, epoch=leading.machine.epoch)
        self._begun.wake()
        self.on_lead(partition)

    def _ended(self, partition: PartitionId) -> None:
        self.version += 1
        logger.info("this node leads a partition no more", partition=partition)
        on_lost = self._on_lost.pop(partition, None)
        if on_lost is not None:
            on_lost()

    def learn(self, changes: Sequence[Entry | Delete]) -> None:
        """What one commit has changed in the metadata store: perhaps this node was elected."""
        for change in changes:
            if isinstance(change, Entry) and change.key.startswith(PARTITIONS):
                record = decode(change.value, PartitionRecord)
                self.version += record.leader == self._cluster.membership.record.id

    # ------------------------------------------------------------------ who serves what

    def may_lack(self, record: TopicRecord) -> bool:
        """Else one that does is a former leader's, who does not know that it was replaced."""
        return record.settings.allow_data_loss

    def leads(self, record: TopicRecord, index: int) -> bool:
        """Also what it was elected for and is about to lead: whoever comes waits for that."""
        partition = partition_id(record, index)
        replica = self._cluster.replica_manager.replica(partition)
        return (replica is not None and replica.is_leading) or self._is_elected(partition)

    def leader(self, record: TopicRecord, index: int) -> str | None:
        state = self._cluster.view.state
        versioned = state.partitions.get(partition_id(record, index))
        node = None if versioned is None else state.nodes.get(versioned.record.leader)
        return None if node is None else node.address

    def in_sync(self, record: TopicRecord, index: int) -> list[ReplicaInfo]:
        state = self._cluster.view.state
        versioned = state.partitions.get(partition_id(record, index))
        names = () if versioned is None else versioned.record.in_sync
        nodes = [state.nodes[name] for name in names if name in state.nodes]
        return [ReplicaInfo(node.address, node.zone) for node in nodes]

    def follower(self, record: TopicRecord, index: int) -> FollowerLog | None:
        replica = self._cluster.replica_manager.replica(partition_id(record, index))
        if replica is None or replica.is_leading or replica.record is None:
            return None
        if self._cluster.membership.record.id not in replica.record.in_sync:
            return None
        return FollowerLog(replica, DATA, self._clock)

    # ------------------------------------------------------------------ topics come and go

    def begin(self, record: TopicRecord) -> Sequence[Put]:
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
        replicas = settings.replicas or min(REPLICAS, nodes)
        if not nodes or replicas > nodes:
            raise NotEnoughReplicas(
                f"{replicas} replicas need {replicas} nodes and the cluster has {nodes}: add nodes or "
                "ask for fewer replicas"
            )
        return replicas

    async def change(
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
        return msgspec.structs.replace(changed, allow_data_loss=new.allow_data_loss)

    def term(self, record: TopicRecord, index: int) -> int:
        replica = self._cluster.replica_manager.replica(partition_id(record, index))
        if replica is None or not replica.is_leading:
            raise self._not_leader(record, index)
        return replica.leading.machine.epoch

    async def split(
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
            raise self._not_leader(new, index)
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

    def altered(self, record: TopicRecord) -> None:
        """Every replica that is held here goes on with the settings, whether it leads or not."""
        partitions = [partition_id(record, index) for index in range(len(record.first_hashes))]
        task = asyncio.create_task(self._cluster.replica_manager.reconfigure(partitions))
        self._altering.add(task)
        task.add_done_callback(self._altering.discard)

    def end(self, record: TopicRecord) -> Sequence[Put | Delete]:
        state = self._cluster.view.state
        changes: list[Put | Delete] = []
        for index in range(len(record.first_hashes)):
            partition = partition_id(record, index)
            versioned = state.partitions.get(partition)
            if versioned is not None:
                changes += deletion(partition, versioned)[1]
        return changes

    async def remove(self, record: TopicRecord) -> None:
        """Whoever holds replicas of it drops them when it learns of the deletion."""

    # ------------------------------------------------------------------ partitions

    async def open(
        self, record: TopicRecord, index: int, _settings: LogSettings, on_lost: Callable[[], None]
    ) -> Partition:
        partition = partition_id(record, index)
        replica = await self._leading(partition)
        if replica is None:
            raise self._not_leader(record, index)
        leading = replica.leading
        data, state = (LeaderLog(replica, leading, log, self._clock) for log in (DATA, STATE))
        for log in (data, state):
            await log.wait_recovered(_RECOVERY_TIMEOUT_S)

        async def state_log() -> Log:
            log = LeaderLog(replica, leading, STATE, self._clock)
            await log.wait_settled(_RECOVERY_TIMEOUT_S)
            return log

        opened = await Partition.over(
            partition,
            data,
            snapshots=await LoggedSnapshots.open(state, self._run_blocking),
            open_state_log=state_log,
            clock=self._clock,
            dedup_window_us=record.settings.dedup_window_us,
        )
        if leading.is_over:
            raise self._not_leader(record, index)
        self._on_lost[partition] = on_lost
        return opened

    async def _leading(self, partition: PartitionId) -> Replica | None:
        """The replica once it leads; who was elected a moment ago is waited for."""
        deadline = self._clock.monotonic() + _BEGIN_TIMEOUT_S
        while True:
            replica = self._cluster.replica_manager.replica(partition)
            if replica is not None and replica.is_leading:
                return replica
            left_s = deadline - self._clock.monotonic()
            if left_s <= 0 or not self._is_elected(partition):
                return None
            await self._begun.wait(min(left_s, _LOOK_S))

    def _is_elected(self, partition: PartitionId) -> bool:
        versioned = self._cluster.view.state.partitions.get(partition)
        own = self._cluster.membership.record.id, self._cluster.membership.session
        return versioned is not None and (versioned.record.leader, versioned.record.session) == own

    def _not_leader(self, record: TopicRecord, index: int) -> NotLeader:
        leader = self.leader(record, index)
        return NotLeader(
            f"this node is not the leader of partition {index} of {record.name!r}", leader=leader
        )


def _min_in_sync(settings: TopicSettings, replicas: int) -> int:
    wanted = settings.min_in_sync or replicas // 2 + 1
    if wanted > replicas:
        raise InvalidSetting(
            f"min_in_sync ({wanted}) must not be above replicas ({replicas})",
            setting="min_in_sync",
        )
    return wanted


def _kept_by(settings: TopicSettings) -> tuple[int | None, int | None, bool]:
    """What a topic says of its replicas."""
    return settings.replicas, settings.min_in_sync, settings.allow_data_loss


def log_settings(data: LogSettings) -> tuple[tuple[str, LogSettings], ...]:
    """The logs of a partition, by the names of their folders."""
    return (("data", data), ("state", STATE_SETTINGS))
