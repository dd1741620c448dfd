"""A node as a member of a cluster: registered, with its replicas, and ready to control.

Clock, disk, network and metadata store are handed in: this is the same code in a real node and in
the simulator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from quiver.aio import cancel_and_wait, for_each, report_unexpected
from quiver.cluster.control.controller import ControllerSettings
from quiver.cluster.control.driver import ControllerDriver
from quiver.cluster.control.failure_detector import FailureDetector
from quiver.cluster.election import withdrawn
from quiver.cluster.eligibility import is_counted_on
from quiver.cluster.metadata.store import Delete, Expect, Put
from quiver.cluster.node_session import NodeSession
from quiver.cluster.records import (
    DISKS,
    NOBODY,
    NodeId,
    NodeRecord,
    PartitionId,
    PartitionRecord,
    decode,
    encode,
    node_key,
    partition_key,
)
from quiver.cluster.replica.environment import ClusterEnvironment
from quiver.cluster.replica.leader_driver import LeaderDriver
from quiver.cluster.replica.manager import LogsOf, ReplicaManager, ReplicaManagerSettings
from quiver.cluster.replica.messages import Fetch, FetchReply, NotLeading
from quiver.cluster.replica.replica import OnReplicaCommit, Replica, ReplicaListener
from quiver.cluster.state import ClusterState
from quiver.cluster.view import ClusterView, OnCommit, OnLoad
from quiver.errors import MetadataConflict
from quiver.log.files import write_files

DISK = "disk"
"""The file in the data folder that names it."""
_AGAIN_SECONDS = 0.5


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True):
    lease_seconds: int = 3
    replica_manager: ReplicaManagerSettings = ReplicaManagerSettings()
    controller: ControllerSettings = ControllerSettings()
    scrub_interval_s: float = 86_400.0
    """How often everything stored is read, to find damage while other replicas can mend it."""


class ClusterListener(msgspec.Struct, frozen=True, kw_only=True):
    """Who is told of what a node of a cluster learns, and of what it leads."""

    loaded: OnLoad = lambda entries, revision: None
    committed: OnCommit = lambda changes, revision: None
    leads: Callable[[Replica, LeaderDriver], None] = lambda replica, leading: None
    """Called when this node has begun to lead a partition, before anything is published."""
    leads_no_more: Callable[[PartitionId], None] = lambda partition: None
    stored: OnReplicaCommit = lambda partition, log, committed: None


class ClusterNode:
    """``start`` it, and ``stop`` it unless the process ends anyway."""

    def __init__(
        self,
        record: NodeRecord,
        folder: str,
        settings: ClusterSettings,
        settings_of: LogsOf,
        environment: ClusterEnvironment,
        *,
        new_disk_name: Callable[[], str],
        listener: ClusterListener,
        disk_is_full: Callable[[], bool] = lambda: False,
    ) -> None:
        store, clock = environment.store, environment.clock
        self.view = ClusterView(
            store,
            clock,
            on_load=listener.loaded,
            on_commit=listener.committed,
            on_change=lambda state: self._pass_on_state(),
        )
        self.membership = NodeSession(
            store,
            clock,
            record,
            settings.lease_seconds,
            before_joining=self._withdraw,
            on_session=lambda session: self._pass_on_state(),
            disk_is_full=disk_is_full,
        )
        self.controller_driver = ControllerDriver(record.id, store, clock, settings.controller)
        self.failure_detector = FailureDetector(
            record.id, store, environment.network, clock, self._on_suspect
        )
        self.replica_manager = ReplicaManager(
            record.id,
            f"{folder}/partitions",
            settings.replica_manager,
            settings_of,
            environment,
            proven_until=lambda: self.membership.proven_until,
            listener=ReplicaListener(
                leads=listener.leads,
                leads_no_more=listener.leads_no_more,
                stored=listener.stored,
                gone=self.failure_detector.suspect,
                damaged=self._rejoin,
            ),
        )
        self._folder = folder
        self.store = self._store = store
        self._clock = clock
        self._scrub_interval_s = settings.scrub_interval_s
        self._disk = environment.disk
        self._run_blocking = environment.run_blocking
        self._new_disk_name = new_disk_name
        self._tasks: list[asyncio.Task[None]] = []
        self._joined = False
        self._stopping = False

    @property
    def is_controller(self) -> bool:
        """Whether this node controls the cluster, as far as it knows."""
        controller = self.view.state.controller
        return controller is not None and controller.node == self.membership.record.id

    async def start(self) -> None:
        """Register, once it is known which replicas can be counted on."""
        node = self.membership.record
        name = await self._run_blocking(self._disk_name)
        self.membership.record = msgspec.structs.replace(node, disk=name)
        try:
            await self.replica_manager.find_damage(await self.view.load())
            await self.membership.join()
            await self._keep_disk_name()
        except (Exception, asyncio.CancelledError):
            await self.replica_manager.close()
            raise
        self._joined = True
        self._tasks = [
            asyncio.create_task(self._lasting(work))
            for work in (
                self.membership.keep,
                self.view.follow,
                self.controller_driver.run,
                self._scrub,
                self.replica_manager.mind_lease,
            )
        ]
        self._pass_on_state()

    async def _lasting(self, work: Callable[[], Awaitable[None]]) -> None:
        """Nothing that a member of the cluster does may end silently while the node seems to live."""
        while not self._stopping:
            try:
                await work()
            except Exception as error:
                report_unexpected("a part of this node failed, and is begun again", error)
            await self._clock.sleep(_AGAIN_SECONDS)

    async def hand_over(self) -> None:
        """Give everything that this node leads to others; it goes on as a follower."""
        await self.replica_manager.hand_over()

    async def stop(self) -> None:
        """Hand over what this node leads, and leave."""
        await self.hand_over()
        self._stopping = True
        await cancel_and_wait(*self._tasks)
        await self.failure_detector.close()
        await self.replica_manager.close()
        await self.membership.leave()

    async def on_fetch(self, fetch: Fetch) -> FetchReply:
        self.failure_detector.heard(fetch.node)
        replica = self.replica_manager.replica(fetch.partition)
        if replica is None:
            return NotLeading(epoch=fetch.epoch)
        return await replica.on_fetch(fetch)

    def on_broken(self, node: NodeId) -> None:
        """A connection from another node broke: perhaps its process has ended."""
        self.failure_detector.look_after(node)

    def _on_suspect(self, node: NodeId) -> None:
        self.replica_manager.on_suspect(node)
        self.controller_driver.on_suspect(node)

    async def _scrub(self) -> None:
        while True:
            await self._clock.sleep(self._scrub_interval_s)
            await self.replica_manager.scrub()

    def _pass_on_state(self) -> None:
        if not self._joined:
            return
        state, session = self.view.state, self.membership.session
        if session != NOBODY and self._is_counted_on_damage(state):
            self._rejoin()  # the damage was found while this session began
        self.replica_manager.on_state(state, session)
        self.controller_driver.on_state(state, session)
        self.failure_detector.on_state(state, session)

    def _is_counted_on_damage(self, state: ClusterState) -> bool:
        node = self.membership.record.id
        return any(
            partition in state.partitions
            and is_counted_on(state.partitions[partition].record, node)
            for partition in self.replica_manager.damaged
        )

    def _rejoin(self) -> None:
        """What this session has told of its replicas no longer holds: go on as another."""
        if self._joined:
            self._tasks.append(asyncio.create_task(self.membership.leave()))

    def _disk_name(self) -> str:
        """The name of the data folder, given to it when it was first used."""
        path = f"{self._folder}/{DISK}"
        if not self._disk.exists(path):
            self._disk.make_folder(self._folder)
            write_files(self._disk, self._folder, {DISK: self._new_disk_name().encode()})
        return self._disk.read(path).decode()

    # ------------------------------------------------------------------ lost replicas

    async def _withdraw(self) -> None:
        """Be neither in sync nor eligible where this node can no longer stand for its data."""
        node = self.membership.record.id
        entry = await self._store.get(DISKS + node)
        replaced = entry is not None and entry.value != self.membership.record.disk.encode()
        if self.replica_manager.damaged and not replaced:
            await self._store.commit([], [Delete(node_key(node))])
        # Once its registration is gone, nobody lets it join by what it has told under it.
        while lost := self._wrongly_counted(await self.view.load(), replaced=replaced):
            state = self.view.state
            await for_each(lost, partial(self._withdraw_from, state=state))
        self._forgive_damage(self.view.state)

    def _wrongly_counted(self, state: ClusterState, *, replaced: bool) -> list[PartitionId]:
        return [
            partition
            for partition, versioned in state.partitions.items()
            if is_counted_on(versioned.record, self.membership.record.id)
            and (replaced or self._may_lack(partition, versioned.record))
        ]

    def _forgive_damage(self, state: ClusterState) -> None:
        """Who is in sync alone where data may be lost is elected again: what is left has to do."""
        node = self.membership.record.id
        for partition in list(self.replica_manager.damaged):
            versioned = state.partitions.get(partition)
            if versioned is None or not versioned.record.allow_data_loss:
                continue
            if node in versioned.record.lost:
                self.replica_manager.forgive(partition)

    async def _keep_disk_name(self) -> None:
        """From now on this data folder is the node's: everything that it lacks has been said."""
        key, name = DISKS + self.membership.record.id, self.membership.record.disk.encode()
        entry = await self._store.get(key)
        if entry is None or entry.value != name:
            await self._store.commit([], [Put(key, name)])

    def _may_lack(self, partition: PartitionId, record: PartitionRecord) -> bool:
        """Whether something that was committed may be missing here.

        After a power cut that is so wherever messages are confirmed before they are synced. Nobody
        waits for one that is eligible to catch up, so a process that starts is not.
        """
        if partition in self.replica_manager.damaged:
            return True
        starts = not self._joined and self.membership.record.id in record.eligible
        return starts and not self.replica_manager.syncs(partition)

    async def _withdraw_from(self, partition: PartitionId, state: ClusterState) -> None:
        """One commit also ends the registration under which the node has told of its replica."""
        node, key = self.membership.record.id, partition_key(partition)
        versioned = state.partitions[partition]
        while True:
            record = withdrawn(versioned.record, node)
            changes: list[Put | Delete] = [Put(key, encode(record)), Delete(node_key(node))]
            try:
                await self._store.commit([Expect(key, versioned.revision)], changes)
                return
            except MetadataConflict:
                entry = await self._store.get(key)
                if entry is None:
                    return
                found = decode(entry.value, PartitionRecord)
                if not is_counted_on(found, node):
                    return
                versioned = type(versioned)(found, entry.revision)
