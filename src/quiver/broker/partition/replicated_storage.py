"""Replicated partitions: this node serves those that it leads.

Two logs of each partition are replicated, the messages and the delivery state. The partition is opened
from the committed entries each time this node becomes its leader, and closed when that ends.
"""

from __future__ import annotations

from quiver.aio import TaskSet
from quiver.broker.delivery.snapshots import LoggedSnapshots
from quiver.broker.delivery.state_log import STATE_SETTINGS
from quiver.broker.partition.leadership import DATA, STATE, Leadership
from quiver.broker.partition.listener import PartitionListener
from quiver.broker.partition.partition import Partition
from quiver.broker.partition.replicated_placement import ReplicatedPlacement, partition_id
from quiver.broker.partition.replicated_topics import ReplicatedTopics
from quiver.broker.partition.storage import Storage
from quiver.broker.topics.catalog import TopicRecord
from quiver.cluster.node import ClusterNode
from quiver.cluster.records import PartitionId
from quiver.cluster.replica.leader_log import LeaderLog
from quiver.cluster.replica.manager import LogDefinition
from quiver.cluster.replica.replica import Replica
from quiver.errors import NotEnoughReplicas
from quiver.log.disk.disk_threads import RunBlocking
from quiver.log.log import Log
from quiver.log.settings import LogSettings
from quiver.model.clock import Clock
from quiver.model.ids import Offset
from quiver.model.mirror.failback import Cut

_RECOVERY_TIMEOUT_S = 5.0
_BEGIN_TIMEOUT_S = 2.0
_CUT_TIMEOUT_S, _CUT_LOOK_S = 10.0, 0.02
_LOOK_S = 0.5
"""How often it is looked whether this node is still the one that was elected."""


class ReplicatedPartitionStore:
    mends_itself = True

    def __init__(
        self,
        cluster: ClusterNode,
        placement: ReplicatedPlacement,
        leadership: Leadership,
        clock: Clock,
        run_blocking: RunBlocking,
    ) -> None:
        self._cluster = cluster
        self._placement = placement
        self._leadership = leadership
        self._clock = clock
        self._run_blocking = run_blocking
        self._altering = TaskSet()

    async def load(self) -> None:
        """What this node holds is known to its replicas."""

    def is_unused(self, _record: TopicRecord) -> bool:
        """Replicas are there from the beginning."""
        return False

    def reconfigure(self, record: TopicRecord) -> None:
        """Every replica that is held here goes on with the settings, whether it leads or not."""
        partitions = [partition_id(record, index) for index in range(len(record.first_hashes))]
        self._altering.start(self._cluster.replica_manager.reconfigure(partitions))

    async def remove(self, record: TopicRecord) -> None:
        """Whoever holds replicas of it drops them when it learns of the deletion."""

    async def open(
        self,
        record: TopicRecord,
        index: int,
        _settings: LogSettings,
        listener: PartitionListener,
    ) -> Partition:
        partition = partition_id(record, index)
        replica = await self._leading(partition)
        if replica is None:
            raise self._placement.not_leader(record, index)
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
            raise self._placement.not_leader(record, index)
        self._leadership.serves(partition, listener)
        return opened

    async def cut(self, record: TopicRecord, index: int, _settings: LogSettings) -> None:
        """Lead in a new epoch. Whoever begins to lead cuts its log, and followers cut theirs to it."""
        partition = partition_id(record, index)
        replica, wanted = await self._leading(partition), record.cut_of(index)
        if replica is None:
            raise self._placement.not_leader(record, index)
        if wanted is None:
            return
        if wanted.applies_to(replica.logs[DATA].log.staged_offset):
            await replica.begin_anew()
        deadline = self._clock.monotonic() + _CUT_TIMEOUT_S
        while not (replica.is_leading and replica.leading.is_agreed(Offset(wanted.begin), DATA)):
            if self._clock.monotonic() >= deadline:
                raise NotEnoughReplicas("not all replicas in sync have dropped what diverged yet")
            await self._clock.sleep(_CUT_LOOK_S)

    async def _leading(self, partition: PartitionId) -> Replica | None:
        """The replica once it leads; who was elected a moment ago is waited for."""
        deadline = self._clock.monotonic() + _BEGIN_TIMEOUT_S
        while True:
            replica = self._cluster.replica_manager.replica(partition)
            if replica is not None and replica.is_leading:
                return replica
            left_s = deadline - self._clock.monotonic()
            if left_s <= 0 or not self._placement.is_elected(partition):
                return None
            await self._leadership.wait(min(left_s, _LOOK_S))


def replicated_storage(
    cluster: ClusterNode,
    leadership: Leadership,
    clock: Clock,
    run_blocking: RunBlocking,
) -> Storage:
    """For a node of a cluster, which keeps partitions together with others."""
    placement = ReplicatedPlacement(cluster, leadership, clock)
    return Storage(
        placement=placement,
        partitions=ReplicatedPartitionStore(cluster, placement, leadership, clock, run_blocking),
        hooks=ReplicatedTopics(cluster, placement),
    )


def logs_of(
    data: LogSettings, first_offset: Offset, cut: Cut | None = None
) -> tuple[LogDefinition, ...]:
    """The logs of a partition whose messages begin at ``first_offset``, and end before ``cut``."""
    return (
        LogDefinition("data", data, first_offset, cut),
        LogDefinition("state", STATE_SETTINGS),
    )
