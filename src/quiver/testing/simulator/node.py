"""One machine of the simulated cluster: its disk, its clock, and the process that runs on it.

The process is a real ``ClusterNode`` over real logs. In front of each partition that it leads stands
what a broker would do there: producers' sessions, rebuilt from the log whenever it begins to lead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

from quiver.aio import retrieve_exception
from quiver.broker.partition.producers.sessions import ProducerSessions
from quiver.cluster.node import ClusterListener, ClusterNode, ClusterSettings
from quiver.cluster.records import NodeId, NodeRecord, PartitionId
from quiver.cluster.replica.environment import ClusterEnvironment
from quiver.cluster.replica.leader_driver import LeaderDriver
from quiver.cluster.replica.manager import LogDefinition
from quiver.cluster.replica.messages import Fetch
from quiver.cluster.replica.replica import Replica
from quiver.errors import CorruptLog, LogError, NotLeader, PartitionUnavailable, QuiverError
from quiver.log.retention import RetentionLimits
from quiver.model.batch import UnstoredBatch
from quiver.model.envelope import ProducerStamp, seal_batch
from quiver.model.ids import Offset, ProducerEpoch, ProducerId, Sequence
from quiver.model.schema import PAYLOAD
from quiver.testing.disk import SimulatedCrash, SimulatedDisk
from quiver.testing.simulator.history import Appended, Confirmed, History, Led, LogBegins
from quiver.testing.simulator.loop import Process, VirtualClock, VirtualLoop
from quiver.testing.simulator.messages import (
    Found,
    Leads,
    Publish,
    ReadFrom,
    Stored,
    WhoLeads,
    body_of,
    values_in,
)
from quiver.testing.simulator.network import NodeNetwork, SimulatedNetwork
from quiver.testing.simulator.store import StoreClient

T = TypeVar("T")

FOLDER = "/node"
STATE = 1
"""The second log of a partition, where it has one."""
_NOTES_KEPT = 5
_NOTES_BETWEEN_RETENTIONS = 10
_READ_BYTES = 16 << 10
STOP_SECONDS_MAX = 10.0


class Front:
    """A partition that this process leads, as a broker has it."""

    def __init__(self, replica: Replica, leading: LeaderDriver) -> None:
        self.replica = replica
        self.leading = leading
        self.sessions: ProducerSessions | None = None

    async def prepare(self) -> None:
        """Learn from the log what every producer has stored."""
        try:
            self.sessions = await self._read_sessions()
        except CorruptLog as error:
            self.replica.met_damage(error)

    async def _read_sessions(self) -> ProducerSessions:
        sessions = ProducerSessions()
        log = self.replica.logs[0].log
        offset, end = log.start_offset, log.next_offset
        while offset < end:
            for entry in await log.read(offset, _READ_BYTES):
                sessions.record(entry, None)
                offset = entry.next_offset
        return sessions


class SimulatedNode:
    def __init__(
        self,
        record: NodeRecord,
        settings: ClusterSettings,
        logs: tuple[LogDefinition, ...],
        *,
        loop: VirtualLoop,
        network: SimulatedNetwork,
        store: StoreClient,
        history: History,
        rng: Random,
    ) -> None:
        self.name = record.id
        self.disk = SimulatedDisk(rng.randrange(1 << 30))
        self.clock = VirtualClock(loop)
        self.disk_delay_s = (0.0001, 0.002)
        self.process = Process(record.id)
        self.process.is_dead = True
        self.cluster: ClusterNode | None = None
        self.is_stopping = False
        """Whether it was asked to end: it serves nobody from then on."""
        self._record = record
        self._settings = settings
        self._logs = logs
        self._loop = loop
        self._network = network
        self._store = store
        self._history = history
        self._rng = rng
        self._fronts: dict[PartitionId, Front] = {}

    # ------------------------------------------------------------------ its life

    def start(self) -> None:
        """Start the process, which must be dead."""
        assert self.process.is_dead
        self.process = Process(self.name)
        self.is_stopping = False
        self._fronts = {}
        self._network.serve(self.name, self.process, self._serve, self._on_broken)
        self._loop.start(self.process, self._run(self.process))

    def crash(self) -> None:
        """The power goes: what was not synced is lost, in part or altogether."""
        self._end()
        self.disk.crash()

    def kill(self) -> None:
        """Only the process ends: the system keeps what it wrote."""
        self._end()
        self.disk.kill()

    def stop(self) -> None:
        """The process is asked to end: it hands over and closes; if it is not done in time, it is killed."""
        if self.cluster is None:
            self.kill()
        else:
            self.is_stopping = True
            self._loop.start(self.process, self._leave(self.process, self.cluster))

    async def _leave(self, process: Process, cluster: ClusterNode) -> None:
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await cluster.hand_over()
                await asyncio.sleep(self._rng.choice((0.0, 0.5)) * self._rng.random())
                await self._close()
                await cluster.stop()
        except (QuiverError, OSError, TimeoutError):
            pass  # it ends all the same
        if process is self.process and not process.is_dead:
            self.kill()

    async def _close(self) -> None:
        """Close what runs over the replicas."""

    def lose_disk(self) -> None:
        """The machine comes back with an empty disk."""
        self._end()
        self.disk = SimulatedDisk(self._rng.randrange(1 << 30))

    def _end(self) -> None:
        self._loop.resume(self.process)
        if not self.process.is_dead:
            self._network.end(self.name)
        self._loop.kill(self.process)
        self.cluster = None

    def _member(self, process: Process, listener: ClusterListener) -> ClusterNode:
        return ClusterNode(
            self._record,
            FOLDER,
            self._settings,
            self._logs_of,
            ClusterEnvironment(
                store=self._store,
                network=NodeNetwork(self._network, self.name),
                disk=self.disk,
                clock=self.clock,
                run_blocking=self._blocking(process),
            ),
            new_disk_name=lambda: f"disk-{self._rng.randrange(1 << 40)}",
            listener=listener,
        )

    def _logs_of(self, partition: PartitionId) -> tuple[LogDefinition, ...]:
        return self._logs

    async def _run(self, process: Process) -> None:
        while True:
            cluster = self._member(process, ClusterListener(leads=self._begin))
            try:
                await cluster.start()
            except (QuiverError, OSError):
                await asyncio.sleep(0.5)
                continue
            self.cluster = cluster
            return

    def _blocking(self, process: Process) -> Any:
        async def run_blocking(call: Callable[[], T]) -> T:
            await asyncio.sleep(self._rng.uniform(*self.disk_delay_s))
            try:
                return call()
            except SimulatedCrash:
                if not process.is_dead:
                    self.crash()
                await self._loop.create_future()
                raise

        return run_blocking

    # ------------------------------------------------------------------ what it serves

    async def _serve(self, request: Any) -> Any:
        if self.cluster is None:
            raise PartitionUnavailable("the node is starting")
        match request:
            case Fetch():
                return await self.cluster.on_fetch(request)
            case Publish():
                return await self._publish(request)
            case ReadFrom():
                return await self._read(request)
            case WhoLeads():
                return self._who_leads(self.cluster, request)
        raise AssertionError(request)

    def _on_broken(self, other: str) -> None:
        if self.cluster is not None:
            self.cluster.on_broken(NodeId(other))

    def _who_leads(self, cluster: ClusterNode, request: WhoLeads) -> Leads:
        versioned = cluster.view.state.partitions.get(request.partition)
        return Leads(versioned.record.leader if versioned is not None else None)

    def _begin(self, replica: Replica, leading: LeaderDriver) -> None:
        self._record_lead(replica, leading)
        front = Front(replica, leading)
        self._fronts[replica.partition] = front
        self._loop.create_task(front.prepare())

    def _record_lead(self, replica: Replica, leading: LeaderDriver) -> None:
        record = leading.machine.record
        self._history.led.append(
            Led(
                partition=replica.partition,
                epoch=record.epoch,
                node=self.name,
                session=record.session,
                at=self._loop.time(),
            )
        )

    def _front(self, partition: PartitionId) -> tuple[Front, ProducerSessions]:
        assert self.cluster is not None
        replica = self.cluster.replica_manager.replica(partition)
        if replica is None:
            raise NotLeader(f"{self.name} does not hold {partition}")
        leading = replica.leading
        front = self._fronts.get(partition)
        if front is None or front.leading is not leading or front.sessions is None:
            raise PartitionUnavailable("the leader is learning what is stored")
        return front, front.sessions

    async def _publish(self, request: Publish) -> Stored:
        front, sessions = self._front(request.partition)
        front.leading.require_proven()  # who was deposed would judge by what it knew then
        batch = _sealed(request)
        epoch = front.leading.machine.epoch
        repeat = sessions.judge(batch)
        if repeat is not None:
            assert repeat.stored is not None, "one batch at a time is always remembered"
            end = Offset(repeat.stored.base_offset + repeat.stored.count)
            await front.leading.when_committed(end)
            return Stored(repeat.stored.base_offset, epoch)
        published = front.leading.publish(batch)
        entry = published.entry
        sessions.record(entry, None)
        if len(self._logs) > 1:
            self._note(front, batch)
        for place, value in enumerate(request.values):
            self._history.appended.append(
                Appended(
                    partition=request.partition,
                    epoch=epoch,
                    offset=entry.base_offset + place,
                    value=value,
                    node=self.name,
                )
            )
        await published.committed
        self._record_confirmed(front, epoch, entry.next_offset)
        return Stored(entry.base_offset, epoch)

    def _record_confirmed(self, front: Front, epoch: int, end: Offset) -> None:
        self._history.confirmed.append(
            Confirmed(
                partition=front.replica.partition,
                epoch=epoch,
                node=self.name,
                end=end,
                durable=front.replica.logs[0].log.durable_offset,
                at=self._loop.time(),
            )
        )

    def _note(self, front: Front, batch: UnstoredBatch) -> None:
        """Write to the log of states what was published, and drop what is old of it."""
        noted = front.leading.publish(batch, STATE)
        self._record_start(front)
        for future in (noted.stored, noted.committed):
            future.add_done_callback(retrieve_exception)
        if noted.entry.base_offset % _NOTES_BETWEEN_RETENTIONS == 0:
            self._loop.create_task(self._retain(front))

    async def _retain(self, front: Front) -> None:
        try:
            await front.leading.retain(RetentionLimits(messages=_NOTES_KEPT), STATE)
            self._record_start(front)
        except LogError:
            return

    def _record_start(self, front: Front) -> None:
        """What a reader would see, if this node led and knew all that earlier leaders confirmed."""
        leading, log = front.leading, front.replica.logs[STATE].log
        if not leading.is_over and leading.is_recovered(STATE):
            begins = LogBegins(
                partition=front.replica.partition,
                epoch=leading.machine.epoch,
                node=self.name,
                start=log.start_offset,
                at=self._loop.time(),
            )
            self._history.begins.append(begins)

    async def _read(self, request: ReadFrom) -> Found:
        front, _ = self._front(request.partition)
        entries = await front.replica.read(Offset(request.offset), _READ_BYTES)
        progress = front.leading.machine.logs[0]
        return Found(
            epoch=front.leading.machine.epoch,
            watermark=progress.watermark if progress.recovered else None,
            values=tuple(
                (entry.base_offset + place, value)
                for entry in entries
                for place, value in enumerate(values_in(entry.body))
            ),
        )


def _sealed(request: Publish) -> UnstoredBatch:
    stamp = ProducerStamp(
        ProducerId(request.producer), ProducerEpoch(0), Sequence(request.sequence)
    )
    return seal_batch(body_of(request.values), len(request.values), PAYLOAD, stamp)
