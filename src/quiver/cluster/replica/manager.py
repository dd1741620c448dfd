"""All replicas of one node: opened as the cluster assigns them, mended when their disk fails.

A log that cannot be written any more ends its replica's role; the lead is handed over, and the log
is opened again, which recovers what was synced. A log that is damaged, or that its leader can no
longer continue, is dropped and fetched from a peer; the node leaves the in-sync set first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import msgspec
import structlog

from quiver.aio import AT_ONCE, cancel_and_wait, for_each, report_unexpected
from quiver.cluster.metadata.store import Delete, Expect, Put
from quiver.cluster.records import (
    NOBODY,
    DeletedRecord,
    NodeId,
    PartitionId,
    SessionId,
    decode,
    deleted_key,
    encode,
)
from quiver.cluster.replica.environment import ClusterEnvironment
from quiver.cluster.replica.follower_driver import MustBeginAnew
from quiver.cluster.replica.replica import Replica, ReplicaListener
from quiver.cluster.replica.replica_log import ReplicaLog
from quiver.cluster.replica.settings import ReplicaSettings
from quiver.cluster.state import ClusterState
from quiver.errors import CorruptLog, LogError, MetadataConflict, MetadataError
from quiver.log.settings import LogSettings
from quiver.model.ids import LeaderEpoch, Offset
from quiver.model.mirror.failback import Cut
from quiver.model.topic import Durability

_AGAIN_SECONDS = 0.5

logger = structlog.get_logger()


class LogDefinition(NamedTuple):
    """One log of a partition."""

    name: str
    """Of its folder."""
    settings: LogSettings
    first_offset: Offset = Offset(0)
    """Where it begins if it is not there yet."""
    cut: Cut | None = None
    """What whoever begins to lead drops of its end."""


LogsOf = Callable[[PartitionId], tuple[LogDefinition, ...]]
"""The logs of a partition."""


class ReplicaManagerSettings(msgspec.Struct, frozen=True, kw_only=True):
    replica: ReplicaSettings = ReplicaSettings()


class ReplicaManager:
    def __init__(
        self,
        node: NodeId,
        folder: str,
        settings: ReplicaManagerSettings,
        settings_of: LogsOf,
        environment: ClusterEnvironment,
        *,
        proven_until: Callable[[], float],
        listener: ReplicaListener,
    ) -> None:
        """``settings_of`` has an answer for every partition that this node is to hold."""
        self.damaged: set[PartitionId] = set()
        """Replicas that are of no use: the node may not be seen as alive while it is in sync there."""
        self._forgiven: set[PartitionId] = set()
        """Replicas that were damaged, and are to go on with what is left of them."""
        self.rebuilt_count = 0
        self._node = node
        self._folder = folder
        self._settings = settings
        self._settings_of = settings_of
        self._environment = environment
        self._store = environment.store
        self._disk = environment.disk
        self._clock = environment.clock
        self._run_blocking = environment.run_blocking
        self._proven_until = proven_until
        self._listener = listener
        self._state = ClusterState()
        self._session = NOBODY
        self._replicas: dict[PartitionId, Replica] = {}
        self._led: dict[PartitionId, LeaderEpoch] = {}
        self._tasks: dict[PartitionId, asyncio.Task[None]] = {}
        self._found: dict[PartitionId, list[ReplicaLog]] = {}
        self._opening = asyncio.Semaphore(AT_ONCE)
        self._closing = False

    def replica(self, partition: PartitionId) -> Replica | None:
        return self._replicas.get(partition)

    @property
    def replicas(self) -> list[Replica]:
        return list(self._replicas.values())

    async def reconfigure(self, partitions: Collection[PartitionId]) -> None:
        """Go on with what ``settings_of`` says now of these partitions, those that are held here."""
        for replica in [self._replicas[one] for one in partitions if one in self._replicas]:
            settings_of_each = self._settings_of(replica.partition)
            for held, defined in zip(replica.logs, settings_of_each, strict=True):
                try:
                    await held.reconfigure(defined.settings)
                except LogError as error:  # whoever uses the log meets it too
                    logger.warning("a log cannot be reconfigured", error=error.message)

    def syncs(self, partition: PartitionId) -> bool:
        """Whether the logs of a partition are synced before anything in them counts."""
        return all(
            one.settings.durability is Durability.FSYNC for one in self._settings_of(partition)
        )

    async def find_damage(self, state: ClusterState) -> None:
        """Open every replica, before anybody counts on it; they are taken up with the first state."""
        assigned = [
            partition
            for partition, versioned in state.partitions.items()
            if self._node in versioned.record.replicas
        ]
        await for_each(assigned, self._find)

    async def _find(self, partition: PartitionId) -> None:
        try:
            self._found[partition] = await self._open(partition)
        except CorruptLog as error:
            self._found_damage(partition, error)
        except (LogError, OSError) as error:
            logger.warning("a replica cannot be opened", partition=partition, error=str(error))

    def forgive(self, partition: PartitionId) -> None:
        """Let a damaged replica go on with what is left: its topic permits it, and nobody has more."""
        if partition in self.damaged:
            self.damaged.discard(partition)
            self._forgiven.add(partition)

    async def scrub(self) -> None:
        """Look for damage in everything that is held."""
        for replica in self.replicas:
            await replica.scrub()

    def on_suspect(self, node: NodeId) -> None:
        """That node seems to be gone: partitions led here do not wait for it."""
        for replica in self._replicas.values():
            replica.on_suspect(node)

    async def mind_lease(self) -> None:
        """Tell all that lead when the lease is not being renewed, well before it ends."""
        patience = self._settings.replica.leader.lag_seconds_max
        while True:
            left = self._proven_until() - patience / 2 - self._clock.monotonic()
            if left <= 0:
                for replica in self._replicas.values():
                    replica.on_doubt()
            await self._clock.sleep(left if left > 0 else patience / 4)

    def on_state(self, state: ClusterState, session: SessionId) -> None:
        before, self._state = self._state, state
        concerns_all = state.touched is None or state.nodes is not before.nodes
        concerns_all = concerns_all or session != self._session
        self._session = session
        touched = state.touched
        if touched is None:
            touched = frozenset((*state.partitions, *state.deleted, *self._found))
        for partition in sorted(touched):
            if partition not in self._tasks and self._concerns(partition):
                self._tasks[partition] = asyncio.create_task(self._hold(partition))
        for partition in list(self._replicas) if concerns_all else touched:
            replica = self._replicas.get(partition)
            if replica is not None:
                replica.on_state(state, session)

    def _concerns(self, partition: PartitionId) -> bool:
        """Whether there is something to hold here, or to drop."""
        tombstone = self._state.deleted.get(partition)
        buries = tombstone is not None and self._node in tombstone.holders
        return self._is_assigned(partition) or buries or partition in self._found

    def _is_assigned(self, partition: PartitionId) -> bool:
        versioned = self._state.partitions.get(partition)
        return versioned is not None and self._node in versioned.record.replicas

    def _is_unwanted(self, partition: PartitionId) -> bool:
        """Whether it is deleted, or others hold it; one that nobody knows of any more is kept."""
        versioned = self._state.partitions.get(partition)
        remote = versioned is not None and self._node not in versioned.record.replicas
        return remote or partition in self._state.deleted

    async def hand_over(self) -> None:
        """Give everything that this node leads to others."""
        await for_each(self.replicas, lambda replica: replica.hand_over())

    async def close(self) -> None:
        self._closing = True
        await cancel_and_wait(*self._tasks.values())
        await for_each(list(self._found), self._close_found)

    # ------------------------------------------------------------------ one replica

    async def _hold(self, partition: PartitionId) -> None:
        """Keep one replica going, whatever happens to its disk."""
        first_offsets: dict[int, Offset] = {}
        while self._is_to_be_held(partition):
            try:
                await self._hold_once(partition, first_offsets)
                if self._is_unwanted(partition):
                    await self._let_go(partition)
                    if not self._is_assigned(partition):  # it may have come back meanwhile
                        break
                    continue
            except MustBeginAnew as anew:
                logger.warning("a replica begins anew", partition=partition, reason=str(anew))
                first_offsets = {anew.log: anew.offset}
                name = self._settings_of(partition)[anew.log].name
                await self._drop(f"{partition}/{name}")
                continue
            except CorruptLog as error:
                self._found_damage(partition, error)
            except (LogError, OSError, MetadataError) as error:
                logger.warning("a replica failed", partition=partition, error=str(error))
            except Exception as error:  # whatever it is, others count on this replica
                report_unexpected(f"a replica of {partition} failed unexpectedly", error)
            first_offsets = {}
            await self._clock.sleep(_AGAIN_SECONDS)
        del self._tasks[partition]

    def _is_to_be_held(self, partition: PartitionId) -> bool:
        """A failure while it was being closed must not open it again."""
        concerned = self._concerns(partition) or self._is_unwanted(partition)
        return concerned and not self._closing

    async def _hold_once(self, partition: PartitionId, first_offsets: Mapping[int, Offset]) -> None:
        if not await self._mended(partition):
            return
        try:
            async with self._opening:
                logs = await self._opened(partition, first_offsets)
        except (LogError, OSError):
            await self._resign_unopened(partition)
            raise
        replica = self._made_of(partition, logs)
        self._replicas[partition] = replica
        try:
            await self.reconfigure([partition])  # they may be others than when it was opened
            replica.on_state(self._state, self._session)
            await _until_damaged(replica)
        except (LogError, OSError):
            await replica.resign(in_sync_no_more=True)
            raise
        finally:
            del self._replicas[partition]
            await replica.close()

    def _made_of(self, partition: PartitionId, logs: list[ReplicaLog]) -> Replica:
        return Replica(
            partition,
            self._node,
            logs,
            self._environment,
            settings=self._settings.replica,
            proven_until=self._proven_until,
            led=self._led,
            listener=self._listener,
        )

    async def _resign_unopened(self, partition: PartitionId) -> None:
        """Let others lead what cannot be opened here."""
        replica = self._made_of(partition, [])
        replica.on_state(self._state, self._session)
        await replica.resign(in_sync_no_more=True)

    async def _opened(
        self, partition: PartitionId, first_offsets: Mapping[int, Offset]
    ) -> list[ReplicaLog]:
        found = self._found.pop(partition, None)
        if found is not None:
            return found
        if partition not in self._forgiven:
            return await self._open(partition, first_offsets)
        logs = await self._salvaged(partition)
        self._forgiven.discard(partition)
        return logs

    async def _salvaged(self, partition: PartitionId) -> list[ReplicaLog]:
        """What is left of a replica that was damaged: all but its end, or nothing."""
        logs: list[ReplicaLog] = []
        try:
            logs = await self._open(partition, may_lack_end=True)
            for held in logs:
                await held.scrub()
        except CorruptLog as error:
            await _close(logs)
            logger.error("a damaged replica is dropped", partition=partition, error=error.message)
            await self._drop(partition)
            return await self._open(partition)
        except (Exception, asyncio.CancelledError):
            await _close(logs)
            raise
        return logs

    async def _open(
        self,
        partition: PartitionId,
        first_offsets: Mapping[int, Offset] = {},
        *,
        may_lack_end: bool = False,
    ) -> list[ReplicaLog]:
        logs: list[ReplicaLog] = []
        try:
            for index, defined in enumerate(self._settings_of(partition)):
                held = await ReplicaLog.open(
                    f"{self._folder}/{partition}/{defined.name}",
                    defined.settings,
                    disk=self._disk,
                    clock=self._clock,
                    run_blocking=self._run_blocking,
                    first_offset=first_offsets.get(index, defined.first_offset),
                    on_commit=partial(self._listener.stored, partition, index),
                    context=self._environment.logs,
                    cut_of=partial(self._cut_of, partition, index),
                    may_lack_end=may_lack_end,
                )
                logs.append(held)
        except (Exception, asyncio.CancelledError):
            await _close(logs)
            raise
        return logs

    def _cut_of(self, partition: PartitionId, index: int) -> Cut | None:
        return self._settings_of(partition)[index].cut

    async def _close_found(self, partition: PartitionId) -> None:
        await _close(self._found.pop(partition, []))

    async def _let_go(self, partition: PartitionId) -> None:
        """Drop what is not this node's to hold any more, and say so where that is asked for."""
        await self._close_found(partition)
        await self._drop(partition)
        logger.info("a replica is dropped", partition=partition)
        if partition in self._state.deleted:
            await self._sign_off(partition)

    async def _sign_off(self, partition: PartitionId) -> None:
        """Off the list of those who still hold a deleted partition; the last takes the list away."""
        key = deleted_key(partition)
        while (entry := await self._store.get(key)) is not None:
            holders = decode(entry.value, DeletedRecord).holders
            if self._node not in holders:
                return
            left = tuple(node for node in holders if node != self._node)
            change = Put(key, encode(DeletedRecord(left))) if left else Delete(key)
            with suppress(MetadataConflict):
                await self._store.commit([Expect(key, entry.revision)], [change])
                return

    def _found_damage(self, partition: PartitionId, error: CorruptLog) -> None:
        logger.error("a replica is damaged", partition=partition, error=error.message)
        if partition not in self.damaged:
            self.damaged.add(partition)
            self._listener.damaged()

    async def _mended(self, partition: PartitionId) -> bool:
        """Drop a damaged replica, once nobody counts on it; whether it may be opened."""
        if self._is_unwanted(partition):
            return False
        if partition not in self.damaged:
            return True
        versioned = self._state.partitions.get(partition)
        if versioned is None:
            return False
        if self._node in (*versioned.record.in_sync, *versioned.record.eligible):
            return False
        await self._drop(partition)
        self.damaged.discard(partition)
        self._forgiven.discard(partition)
        self.rebuilt_count += 1
        logger.warning("a replica is fetched from its leader anew", partition=partition)
        return True

    async def _drop(self, what: str) -> None:
        folder = f"{self._folder}/{what}"

        def drop() -> None:
            if self._disk.exists(folder):
                self._disk.remove_folder(folder)

        await self._run_blocking(drop)


async def _close(logs: list[ReplicaLog]) -> None:
    for held in logs:
        with suppress(LogError):  # what was synced is there when it is opened again
            await held.log.close()


async def _until_damaged(replica: Replica) -> None:
    running = asyncio.ensure_future(replica.run())
    try:
        await asyncio.wait([running, replica.damage], return_when=asyncio.FIRST_COMPLETED)
        if replica.damage.done():
            replica.damage.result()
    finally:
        await cancel_and_wait(running)
        replica.damage.cancel()
    running.result()
