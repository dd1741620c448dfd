"""Bugs on purpose: each takes one rule of replication away, to prove that the checker would notice.

A planted bug replaces the one method that keeps a rule, for as long as the context lasts. Nothing
outside of tests does this, and no code of the cluster knows of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
from msgspec.structs import replace
from pyroaring import BitMap64

from quiver.broker.delivery.machine.leases import LeaseTable
from quiver.broker.delivery.machine.machine import DeliveryMachine
from quiver.broker.delivery.snapshots import LoggedSnapshots
from quiver.broker.delivery.split_barrier import SplitBarrier
from quiver.broker.delivery.state_log import DeliveryStateLog
from quiver.broker.delivery.state_recovery import StateRecovery
from quiver.broker.partition.partition import Partition
from quiver.broker.partition.producers.dedup import DedupWindow
from quiver.broker.partition.producers.gaps import LogGaps
from quiver.broker.partition.producers.open_transactions import OpenTransactions
from quiver.broker.partition.producers.sessions import ProducerSessions
from quiver.broker.partition.producers.state import ProducerState
from quiver.broker.subscription.unfinished import Unfinished
from quiver.cluster import election, eligibility
from quiver.cluster import node as cluster_node
from quiver.cluster.control import controller
from quiver.cluster.metadata.store import Put
from quiver.cluster.node import ClusterNode
from quiver.cluster.records import (
    NodeId,
    PartitionRecord,
    SessionId,
    VersionedPartition,
    encode,
    partition_key,
)
from quiver.cluster.replica.follower_driver import FollowerDriver, followed
from quiver.cluster.replica.leader import Leader, Proposal
from quiver.cluster.replica.leader_driver import LeaderDriver
from quiver.cluster.replica.progress import LogProgress
from quiver.cluster.replica.replica import Replica
from quiver.cluster.replica.replica_log import ReplicaLog
from quiver.errors import QuiverError
from quiver.model.batch import StoredBatch
from quiver.model.clock import Clock
from quiver.model.ids import LeaderEpoch, Offset
from quiver.model.topic import Acks, Durability
from quiver.testing.simulator import simulation
from quiver.testing.simulator.mirrors.planted import MIRROR_BUGS
from quiver.testing.simulator.node import Front
from quiver.testing.simulator.receives.planted import RECEIVE_BUGS
from quiver.testing.simulator.sessions.planted import SESSION_BUGS
from quiver.testing.simulator.transactions.planted import TRANSACTION_BUGS

Patch = tuple[Any, str, Any]


@contextmanager
def planted(bug: str) -> Iterator[None]:
    """Run with one bug; ``BUGS``, ``BROKER_BUGS`` and those of the sub-packages have their names."""
    with ExitStack() as stack:
        for owner, name, replacement in _EVERY[bug]:
            original = owner.__dict__[name]
            setattr(owner, name, replacement)
            stack.callback(setattr, owner, name, original)
        yield


def _committed_at_once(
    self: LeaderDriver, end: Offset, log: int = 0, result: StoredBatch | None = None
) -> asyncio.Future[Any]:
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    done.set_result(result)
    return done


def _confirm_all(self: LeaderDriver) -> None:
    self._over = True
    for waiting in self._waiting:
        while waiting:
            _, committed, result = waiting.popleft()
            if not committed.done():
                committed.set_result(result)
    self._parked.answer_all()


_run_following = FollowerDriver.run


async def _cut_to_watermark_first(self: FollowerDriver) -> None:
    await self._held.truncate(self._held.watermark)
    self._follower.logs[self._index] = followed(self._held)
    await _run_following(self)


def _elected_of_any_session(self: Replica, record: PartitionRecord) -> bool:
    return record.leader == self._node and bool(self._session)


def _led_by_any_session(record: PartitionRecord, alive: Mapping[NodeId, SessionId]) -> bool:
    return record.leader in alive


async def _begin_epoch_again(self: ReplicaLog, epoch: LeaderEpoch) -> None:
    if self.history.last_epoch < epoch:
        self.history.begin(epoch, self.log.staged_offset)
    await self.save()


def _mine_of_any_session(self: Leader, record: PartitionRecord) -> bool:
    return (record.leader, record.epoch) == (self.node, self.record.epoch)


def _caught_up_with_watermark(self: LogProgress, node: NodeId) -> bool:
    synced = self.synced(node)
    return synced is not None and synced >= self.watermark


def _advance_before_the_leader_synced(self: LogProgress, followers: Iterable[NodeId]) -> bool:
    self.durable = self.end
    return _advance(self, followers)


_advance = LogProgress.advance


def _wait_for_confirmed_members(self: Leader) -> list[NodeId]:
    return sorted(set(self.record.in_sync) - {self.node})


async def _swap_without_comparing(
    self: LeaderDriver, proposal: Proposal
) -> VersionedPartition | None:
    key = partition_key(self._partition)
    revision = await self._store.commit([], [Put(key, encode(proposal.record))])
    return VersionedPartition(proposal.record, revision)


def _anyone_alive(record: PartitionRecord, node: NodeId, alive: Mapping[NodeId, SessionId]) -> bool:
    return node in alive


def _eligible_also_who_left_before(
    before: PartitionRecord, after: PartitionRecord
) -> tuple[NodeId, ...]:
    """Also who left while enough stayed to commit something without it."""
    if after.can_commit:
        return ()
    return tuple(node for node in after.replicas if node not in (*after.in_sync, *before.lost))


def _counted_on_in_sync(record: PartitionRecord, node: NodeId) -> bool:
    return node in record.in_sync and node not in record.lost


async def _read_everything(
    self: Replica, offset: Offset, bytes_max: int, log: int = 0
) -> list[Any]:
    if offset >= self.logs[log].log.next_offset:
        return []
    return await self.logs[log].log.read(offset, bytes_max)


async def _no_sessions(self: Front) -> ProducerSessions:
    return ProducerSessions()


async def _say_nothing(self: ClusterNode) -> None:
    pass


def _unsynced() -> Any:
    return tuple(
        one._replace(
            settings=msgspec.structs.replace(
                one.settings, durability=Durability.INTERVAL, sync_interval_ms=60_000
            )
        )
        for one in simulation.LOGS
    )


def _always(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


async def _no_records(self: StateRecovery, machines: dict[int, DeliveryMachine]) -> bool:
    return False


async def _no_snapshots(cls: Any, log: Any, run_blocking: Any) -> LoggedSnapshots:
    return LoggedSnapshots(log, run_blocking)


async def _forget_producers(
    cls: type[ProducerState], _log: Any, _snapshot: Any, window: DedupWindow, _handover: Any
) -> ProducerState:
    return cls(window, ProducerSessions(), OpenTransactions(), LogGaps())


def _held_by_anyone(self: LeaseTable, lease_id: int, offsets: BitMap64) -> BitMap64:
    """Whoever holds them; each lease that does loses them."""
    for lease in self.overlapping(offsets):
        if lease.id != lease_id:
            part = lease.offsets & offsets
            self.release(lease.id, part)
            self.grant(replace(lease, id=lease_id, offsets=part))
    return _valid(self, lease_id, offsets)


_valid = LeaseTable.valid
_commit = DeliveryStateLog.commit


def _committed_before_it_is(
    self: DeliveryStateLog, subscription: int, records: Any, *, at_leisure: bool = False
) -> asyncio.Future[None]:
    _commit(self, subscription, records, at_leisure=True)
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    done.set_result(None)
    return done


async def _open_state_kept(self: Partition, blank: dict[int, DeliveryMachine]) -> DeliveryStateLog:
    """What the node knew when it led the partition before is taken for what is true now."""
    state = await _open_state(self, blank)
    by_folder = _known.setdefault(self._clock, {})
    for number, machine in by_folder.get(self.folder, {}).items():
        if machine.view.observed_to <= self.log.next_offset:
            state.machines[number] = machine
    by_folder[self.folder] = state.machines
    return state


_open_state = Partition.open_state
_known: WeakKeyDictionary[Clock, dict[str, dict[int, DeliveryMachine]]] = WeakKeyDictionary()
"""Of each node, which has a clock of its own: its machines by the partition's folder."""


def _refused_before_it_is_judged(
    self: Partition,
    batch: Any,
    rows: Any,
    acks: Any = Acks.QUORUM,
    *,
    refusal: QuiverError | None = None,
) -> Any:
    self.log.require_current()
    if refusal is not None:
        raise refusal
    return _publish(self, batch, rows, acks)


_publish = Partition.publish


async def _import_nothing(self: Partition, data: bytes) -> None:
    await _import_handover(self, b"")


_import_handover = Partition.import_handover


async def _agreed_at_once(self: LeaderDriver, start: Offset, log: int) -> bool:
    return True


BUGS: dict[str, list[Patch]] = {
    "acknowledge before commit": [(LeaderDriver, "when_committed", _committed_at_once)],
    "confirm what was under way when deposed": [(LeaderDriver, "_end", _confirm_all)],
    "count unsynced offsets": [(simulation, "LOGS", _unsynced())],
    "count the leader before it has synced": [
        (LogProgress, "advance", _advance_before_the_leader_synced)
    ],
    "truncate by watermark": [(FollowerDriver, "run", _cut_to_watermark_first)],
    "forget the epoch check": [(LogProgress, "divergence", _always(None))],
    "keep the epoch over a restart": [
        (Replica, "is_elected", _elected_of_any_session),
        (Leader, "_is_mine", _mine_of_any_session),
        (controller, "is_led", _led_by_any_session),
        (ReplicaLog, "begin_epoch", _begin_epoch_again),
    ],
    "join before catching up in the epoch": [
        (LogProgress, "has_caught_up", _caught_up_with_watermark)
    ],
    "ignore who may already be in sync": [(Leader, "_waited_for", _wait_for_confirmed_members)],
    "change the in-sync set without comparing": [(LeaderDriver, "swap", _swap_without_comparing)],
    "elect outside the in-sync set": [(election, "is_candidate", _anyone_alive)],
    "elect an eligible one that missed a commit": [
        (eligibility, "eligible_after", _eligible_also_who_left_before)
    ],
    "stay eligible with a lost disk": [(cluster_node, "is_counted_on", _counted_on_in_sync)],
    "leave the eligible out of elections": [(election, "may_step_in", _always(False))],
    "serve reads past the watermark": [(Replica, "read", _read_everything)],
    "tell a watermark before it is recovered": [
        (LogProgress, "recovered", property(_always(True)))
    ],
    "begin before the replicas in sync do": [(LeaderDriver, "_agree_on", _agreed_at_once)],
    "lose dedup state": [(Front, "_read_sessions", _no_sessions)],
    "count on a lost disk": [(ClusterNode, "_withdraw", _say_nothing)],
}

BROKER_BUGS: dict[str, list[Patch]] = {
    "drop the state log on failover": [
        (StateRecovery, "replay", _no_records),
        (LoggedSnapshots, "open", classmethod(_no_snapshots)),
    ],
    "lose the broker's dedup state": [(ProducerState, "rebuild", classmethod(_forget_producers))],
    "honour a stale receipt": [(LeaseTable, "valid", _held_by_anyone)],
    "acknowledge an ack before it is committed": [
        (DeliveryStateLog, "commit", _committed_before_it_is)
    ],
    "keep the delivery state over a lost lead": [(Partition, "open_state", _open_state_kept)],
    "forget snapshots in the state log": [(LoggedSnapshots, "open", classmethod(_no_snapshots))],
    "refuse a layout before looking for repeats": [
        (Partition, "publish", _refused_before_it_is_judged)
    ],
    "hand nothing down": [(Partition, "import_handover", _import_nothing)],
    "deliver a child before its parent": [(SplitBarrier, "is_open", _always(True))],
    "delete what nobody has finished": [(Unfinished, "keeps", _always(False))],
}
"""Those that only seeds with brokers find."""

_EVERY = BUGS | BROKER_BUGS | SESSION_BUGS | RECEIVE_BUGS | TRANSACTION_BUGS | MIRROR_BUGS
