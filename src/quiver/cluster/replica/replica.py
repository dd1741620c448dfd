"""A replica of a partition on this node: leads, follows, or waits, as the cluster's metadata says.

A process leads only in an epoch in which it was elected. After a restart it finds another session in the
record and does not lead until it is elected again. Between two roles the logs are not used. A log whose
disk failed ends the role: ``run`` raises ``LogFailed`` and the node opens the replica again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import msgspec
import structlog

from quiver.aio import Signal, retrieve_exception
from quiver.cluster.election import renewed, resigned
from quiver.cluster.metadata.store import Expect, Put
from quiver.cluster.records import (
    NOBODY,
    NodeId,
    PartitionId,
    PartitionRecord,
    SessionId,
    VersionedPartition,
    encode,
    partition_key,
)
from quiver.cluster.replica.environment import ClusterEnvironment
from quiver.cluster.replica.epochs import NO_EPOCH
from quiver.cluster.replica.follower import Follower
from quiver.cluster.replica.follower_driver import FollowerDriver, followed
from quiver.cluster.replica.leader_driver import LeaderDriver
from quiver.cluster.replica.messages import Fetch, FetchReply, NotLeading
from quiver.cluster.replica.replica_log import ReplicaLog
from quiver.cluster.replica.settings import ReplicaSettings
from quiver.cluster.state import ClusterState
from quiver.errors import CorruptLog, LogError, LogFailed, MetadataError, NotLeader
from quiver.log.group_commit import Committed
from quiver.model.batch import StoredBatch
from quiver.model.ids import LeaderEpoch, Offset

logger = structlog.get_logger()


OnReplicaCommit = Callable[[PartitionId, int, Committed], None]
"""Called after each commit, with the partition and which of its logs it is."""


class ReplicaListener(msgspec.Struct, frozen=True, kw_only=True):
    """Who is told of what happens to the replicas of a node."""

    leads: Callable[[Replica, LeaderDriver], None] = lambda replica, leading: None
    """Called when this node has begun to lead, before anything is published."""
    leads_no_more: Callable[[PartitionId], None] = lambda partition: None
    stored: OnReplicaCommit = lambda partition, log, committed: None
    gone: Callable[[NodeId], None] = lambda node: None
    """Called with a leader whose process seems to have ended, as often as that is noticed."""
    damaged: Callable[[], None] = lambda: None
    """Called when a replica is found to be of no use."""


class Replica:
    """Tell it of each state, and let ``run`` run."""

    def __init__(
        self,
        partition: PartitionId,
        node: NodeId,
        logs: Sequence[ReplicaLog],
        environment: ClusterEnvironment,
        *,
        settings: ReplicaSettings,
        proven_until: Callable[[], float],
        led: dict[PartitionId, LeaderEpoch],
        listener: ReplicaListener,
    ) -> None:
        """``led`` outlives the replica: in which epoch this process has last led each partition."""
        self.partition = partition
        self.logs = logs
        self.damage: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails with ``CorruptLog`` when damage is met in what was stored."""
        self._node = node
        self._store = environment.store
        self._network = environment.network
        self._clock = environment.clock
        self._settings = settings
        self._proven_until = proven_until
        self._session = NOBODY
        self._versioned: VersionedPartition | None = None
        self._sessions: Mapping[NodeId, SessionId] = {}
        self._deleted = False
        self._leading: LeaderDriver | None = None
        self._led = led
        self._listener = listener
        self._changed = Signal(environment.clock)

    # ------------------------------------------------------------------ what the cluster says

    def on_state(self, state: ClusterState, session: SessionId) -> None:
        self._versioned = state.partitions.get(self.partition)
        self._deleted = self.partition in state.deleted
        self._session = session
        self._sessions = state.sessions()
        if self._leading is not None:
            if session != self._leading.machine.record.session:
                self._leading.machine.deposed = True
            self._leading.on_state(self._versioned, self._sessions)
        self._changed.wake()

    def on_doubt(self) -> None:
        """This node's lease is not being renewed."""
        if self._leading is not None:
            self._leading.on_doubt()

    def on_suspect(self, node: NodeId) -> None:
        """That node seems to be gone."""
        if self._leading is not None:
            self._leading.on_suspect(node)

    @property
    def record(self) -> PartitionRecord | None:
        return self._versioned.record if self._versioned is not None else None

    def is_elected(self, record: PartitionRecord) -> bool:
        """Whether it was this very process that was elected."""
        elected = (record.leader, record.session) == (self._node, self._session)
        return elected and self._session != NOBODY

    def may_lead(self, record: PartitionRecord) -> bool:
        """Nobody leads twice in one epoch: a log that was opened again may have lost its end."""
        return self.is_elected(record) and record.epoch > self._led.get(self.partition, NO_EPOCH)

    # ------------------------------------------------------------------ what others ask

    @property
    def leading(self) -> LeaderDriver:
        """``NotLeader`` if this node does not lead the partition now."""
        leading = self._leading
        if leading is None or leading.is_over:
            leader = self.record.leader if self.record is not None else None
            raise NotLeader(f"this node is not the leader of {self.partition}", leader=leader)
        return leading

    @property
    def is_leading(self) -> bool:
        return self._leading is not None and not self._leading.is_over

    async def on_fetch(self, fetch: Fetch) -> FetchReply:
        epoch = self.record.epoch if self.record is not None else fetch.epoch
        try:
            return await self.leading.on_fetch(fetch)
        except NotLeader:
            return NotLeading(epoch=epoch)
        except CorruptLog as error:
            self.met_damage(error)
            return NotLeading(epoch=epoch)
        except LogError:
            # Retention was quicker, or the log is being closed: asking again will tell.
            return NotLeading(epoch=epoch)

    async def read(self, offset: Offset, bytes_max: int, log: int = 0) -> list[StoredBatch]:
        """Committed entries from the one that holds ``offset`` on; empty if there are none yet."""
        leading = self.leading
        leading.require_proven()
        if offset >= leading.watermark(log):
            return []
        try:
            entries = await self.logs[log].log.read(offset, bytes_max)
        except CorruptLog as error:
            self.met_damage(error)
            raise
        watermark = leading.watermark(log)
        return [entry for entry in entries if entry.next_offset <= watermark]

    async def scrub(self) -> None:
        """Read everything that is stored, so that damage is met before it is needed."""
        try:
            for held in self.logs:
                await held.scrub()
        except CorruptLog as error:
            self.met_damage(error)
        except LogError as error:
            logger.warning("a log cannot be scrubbed now", error=error.message)

    def met_damage(self, error: CorruptLog) -> None:
        """Somebody could not read what is stored: this replica is of no use any more."""
        if not self.damage.done():
            self.damage.set_exception(error)

    # ------------------------------------------------------------------ roles

    async def run(self) -> None:
        """Returns when the partition is no longer this node's to hold."""
        while True:
            self._require_logs()
            versioned = self._versioned
            if versioned is not None and self._node not in versioned.record.replicas:
                return
            if self._deleted:
                return
            if versioned is not None and self.may_lead(versioned.record):
                await self._lead(versioned)
            elif versioned is not None and self.is_elected(versioned.record):
                await self.resign(in_sync_no_more=False)
                await self._changed.wait(self._settings.tick_s)
            elif versioned is not None and self._follows(versioned.record):
                await self._follow(versioned.record)
            else:
                await self._changed.wait()

    def _follows(self, record: PartitionRecord) -> bool:
        return (
            self._session != NOBODY
            and self._node in record.replicas
            and record.leader != self._node
            and record.session != NOBODY
        )

    async def _lead(self, versioned: VersionedPartition) -> None:
        """Lead in this epoch until that is over."""
        epoch = versioned.record.epoch
        self._led[self.partition] = epoch
        for held in self.logs:
            await held.drop_cut()
            await held.begin_epoch(epoch)
        now = self._versioned
        if now is None or now.record.epoch != epoch or not self.is_elected(now.record):
            return
        leading = LeaderDriver(
            self.partition,
            self._node,
            now,
            self.logs,
            store=self._store,
            clock=self._clock,
            settings=self._settings,
            proven_until=self._proven_until,
        )
        leading.on_state(now, self._sessions)
        self._leading = leading
        self._listener.leads(self, leading)
        try:
            await leading.run()
        finally:
            self._leading = None
            self._listener.leads_no_more(self.partition)
        for held in self.logs:
            await (
                held.log.commits.wait_stored()
            )  # whoever leads now is asked about all that is in this log

    def _require_logs(self) -> None:
        """A log that failed in an earlier role may say that it is of an epoch it has nothing of."""
        for held in self.logs:
            if held.log.failure is not None:
                raise held.log.failure

    async def _follow(self, record: PartitionRecord) -> None:
        """Follow the leader of this epoch until the cluster says otherwise."""
        session = self._session
        follower = Follower(
            self.partition, self._node, session, record, [followed(held) for held in self.logs]
        )
        drivers = [
            FollowerDriver(
                index,
                held,
                follower,
                self._network,
                self._clock,
                self._settings,
                self._listener.gone,
            )
            for index, held in enumerate(self.logs)
        ]
        tasks = [driver.start() for driver in drivers]
        try:
            while self._still_follows(record, session):
                changed = self._changed.next_wake()
                await asyncio.wait([changed, *tasks], return_when=asyncio.FIRST_COMPLETED)
                self._changed.forget(changed)
                for task in tasks:
                    if task.done():
                        task.result()
        finally:
            for driver in drivers:
                driver.stop()
            await _ended(tasks)

    def _still_follows(self, record: PartitionRecord, session: SessionId) -> bool:
        now = self.record
        return (
            now is not None
            and session == self._session
            and self._follows(now)
            and (now.leader, now.epoch) == (record.leader, record.epoch)
        )

    # ------------------------------------------------------------------ giving up

    async def hand_over(self) -> None:
        """Let another lead, before this node stops. Nobody else can: nothing is written for that.

        The session ends with the node, and whoever comes back first is elected then.
        """
        versioned = self._versioned
        if versioned is None or not self.is_elected(versioned.record):
            return
        record = resigned(versioned.record, self._node, self._sessions, in_sync_no_more=False)
        if record.session != NOBODY:
            await self._commit(versioned, record)

    async def begin_anew(self) -> None:
        """Go on leading, in a new epoch."""
        versioned = self._versioned
        if versioned is None or not self.is_elected(versioned.record):
            return
        await self._commit(versioned, renewed(versioned.record))

    async def resign(self, *, in_sync_no_more: bool) -> None:
        """Give the lead up, if this node has it, to another or to nobody.

        A failure leaves that to the controller.
        """
        versioned = self._versioned
        if versioned is None or not self.is_elected(versioned.record):
            return
        record = resigned(
            versioned.record, self._node, self._sessions, in_sync_no_more=in_sync_no_more
        )
        await self._commit(versioned, record)

    async def _commit(self, versioned: VersionedPartition, record: PartitionRecord) -> None:
        key = partition_key(self.partition)
        try:
            await self._store.commit([Expect(key, versioned.revision)], [Put(key, encode(record))])
        except MetadataError as error:
            logger.warning(
                "the lead cannot be handed over", partition=self.partition, error=error.message
            )

    async def close(self) -> None:
        for held in self.logs:
            try:
                await held.close()
            except LogFailed:
                continue


async def _ended(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait for tasks that were told to end; what they say no longer matters."""
    waiting = list(tasks)
    while waiting:
        await asyncio.wait(waiting)
        for task in waiting:
            retrieve_exception(task)
        waiting = [task for task in waiting if not task.done()]
