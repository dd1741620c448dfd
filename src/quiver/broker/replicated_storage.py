"""Partitions that several nodes keep together: this node serves those that it leads.

Two logs of each are replicated, the messages and what subscriptions did with them. A partition is
opened anew each time the node begins to lead it, from what is committed, and lost when that ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from quiver.broker.catalog import TopicRecord
from quiver.broker.partition import Partition
from quiver.broker.partition_state import STATE_SETTINGS
from quiver.broker.snapshots import LoggedSnapshots
from quiver.cluster.cluster_node import ClusterNode
from quiver.cluster.controller import new_partition
from quiver.cluster.metadata import Delete, Put
from quiver.cluster.operations import deletion, sites_of
from quiver.cluster.placement import place
from quiver.cluster.records import PartitionId, encode, partition_key
from quiver.cluster.replica.leading import Leading
from quiver.cluster.replica.replica import Replica
from quiver.cluster.replica.replicated_log import ReplicatedLog
from quiver.errors import NotEnoughReplicas, NotLeader
from quiver.log.log import Log
from quiver.log.partition_log import RunBlocking
from quiver.log.settings import LogSettings
from quiver.model.clock import Clock

DATA, STATE = 0, 1
"""Which of a partition's logs is which."""
REPLICAS = 3
"""How many there are of each partition, unless its topic says otherwise or there are fewer nodes."""
_RECOVERY_TIMEOUT_S = 5.0

logger = structlog.get_logger()


def partition_id(record: TopicRecord, index: int) -> PartitionId:
    return PartitionId(f"{record.folder}/{index}")


class ReplicatedStorage:
    mends_itself = True

    def __init__(self, cluster: ClusterNode, clock: Clock, run_blocking: RunBlocking) -> None:
        self.version = 0
        self.on_lead: Callable[[PartitionId], None] = lambda partition: None
        """Called when this node begins to lead a partition."""
        self._cluster = cluster
        self._clock = clock
        self._run_blocking = run_blocking
        self._reconfiguring: set[asyncio.Task[None]] = set()
        self._on_lost: dict[PartitionId, Callable[[], None]] = {}
        cluster.holdings.on_opened = self._opened

    def _opened(self, replica: Replica) -> None:
        replica.on_leading = lambda leading: self._began(replica.partition, leading)

    def _began(self, partition: PartitionId, leading: Leading) -> None:
        self.version += 1
        leading.on_over = lambda: self._ended(partition)
        logger.info("this node leads a partition", partition=partition, epoch=leading.machine.epoch)
        self.on_lead(partition)

    def _ended(self, partition: PartitionId) -> None:
        self.version += 1
        logger.info("this node leads a partition no more", partition=partition)
        on_lost = self._on_lost.pop(partition, None)
        if on_lost is not None:
            on_lost()

    # ------------------------------------------------------------------ who serves what

    def leads(self, record: TopicRecord, index: int) -> bool:
        replica = self._cluster.holdings.replica(partition_id(record, index))
        return replica is not None and replica.is_leading

    def leader(self, record: TopicRecord, index: int) -> str | None:
        state = self._cluster.view.state
        versioned = state.partitions.get(partition_id(record, index))
        node = None if versioned is None else state.nodes.get(versioned.record.leader)
        return None if node is None else node.address

    # ------------------------------------------------------------------ topics come and go

    def begin(self, record: TopicRecord) -> Sequence[Put]:
        state, settings = self._cluster.view.state, record.settings
        sites = sites_of(state)
        replicas = settings.replicas or min(REPLICAS, len(sites))
        if not sites or replicas > len(sites):
            raise NotEnoughReplicas(
                f"{replicas} replicas need as many nodes, and there are {len(sites)} now"
            )
        wanted = {key: len(one.record.replicas) for key, one in state.partitions.items()}
        current = {key: one.record.replicas for key, one in state.partitions.items()}
        new = [partition_id(record, index) for index in range(len(record.first_hashes))]
        placed = place(wanted | dict.fromkeys(new, replicas), sites, current)
        puts = []
        for partition in new:
            first = new_partition(
                placed[partition],
                state.sessions(),
                min_in_sync=settings.min_in_sync or replicas // 2 + 1,
                allow_data_loss=settings.allow_data_loss,
            )
            assert first is not None, "the nodes that were chosen live"
            puts.append(Put(partition_key(partition), encode(first)))
        return puts

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

    def reconfigure(self) -> None:
        task = asyncio.create_task(self._cluster.holdings.reconfigure())
        self._reconfiguring.add(task)
        task.add_done_callback(self._reconfiguring.discard)

    async def open(
        self, record: TopicRecord, index: int, _settings: LogSettings, on_lost: Callable[[], None]
    ) -> Partition:
        partition = partition_id(record, index)
        replica = self._cluster.holdings.replica(partition)
        if replica is None or not replica.is_leading:
            raise self._not_leader(record, index)
        leading = replica.leading
        data, state = (ReplicatedLog(replica, leading, log, self._clock) for log in (DATA, STATE))
        for log in (data, state):
            await log.wait_recovered(_RECOVERY_TIMEOUT_S)

        async def state_log() -> Log:
            log = ReplicatedLog(replica, leading, STATE, self._clock)
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

    def _not_leader(self, record: TopicRecord, index: int) -> NotLeader:
        leader = self.leader(record, index)
        return NotLeader(
            f"this node does not lead partition {index} of {record.name!r}", leader=leader
        )


def log_settings(data: LogSettings) -> tuple[tuple[str, LogSettings], ...]:
    """The logs of a partition, by the names of their folders."""
    return (("data", data), ("state", STATE_SETTINGS))
