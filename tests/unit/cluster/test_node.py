"""What nobody foresaw happens in a member of the cluster: it is told of, and the node's work goes on."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from quiver.cluster.control.controller import new_partition
from quiver.cluster.metadata.store import Delete, Entry, Put
from quiver.cluster.node import ClusterListener, ClusterNode, ClusterSettings
from quiver.cluster.records import (
    DISKS,
    NodeId,
    NodeRecord,
    PartitionId,
    PartitionRecord,
    SessionId,
    decode,
    encode,
    node_key,
    partition_key,
)
from quiver.cluster.replica.environment import ClusterEnvironment
from quiver.cluster.replica.manager import LogDefinition, LogsOf
from quiver.cluster.replica.network import Network
from quiver.cluster.replica.replica import Replica
from quiver.errors import CorruptLog, InvalidSetting, LogFailed, NodeGone, NotLeader
from quiver.log.settings import LogSettings
from quiver.model.clock import SystemClock
from quiver.model.topic import Durability
from quiver.testing.disk import SimulatedDisk
from quiver.testing.memory_store import MemoryStore
from tests.aio import async_test
from tests.unit.broker.broker_doubles import batch_of

A, B = NodeId("a"), NodeId("b")
P = PartitionId("t/0")
LOGS = (LogDefinition("data", LogSettings()),)
NOBODY_TOLD = ClusterListener()
_SECONDS_MAX = 20.0


class Nobody(Network):
    async def call(self, node: NodeId, request: Any, timeout_s: float) -> Any:
        raise NodeGone("there is nobody else")


async def at_once(work: Callable[[], Any]) -> Any:
    return work()


@asynccontextmanager
async def member(
    logs_of: LogsOf = lambda partition: LOGS,
    listener: ClusterListener = NOBODY_TOLD,
    stored: Sequence[Put] = (),
    store: MemoryStore | None = None,
) -> AsyncIterator[tuple[ClusterNode, MemoryStore, list[str]]]:
    """A cluster of one node that found ``stored``, and what the event loop was told of."""
    told: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(str(context.get("exception"))))
    store = store or MemoryStore(SystemClock())
    await store.commit([], stored)
    node = ClusterNode(
        NodeRecord(id=A),
        "/node",
        ClusterSettings(),
        logs_of,
        ClusterEnvironment(
            store=store,
            network=Nobody(),
            disk=SimulatedDisk(1),
            clock=SystemClock(),
            run_blocking=at_once,
        ),
        new_disk_name=lambda: "disk",
        listener=listener,
    )
    await node.start()
    try:
        yield node, store, told
    finally:
        await node.stop()
        await store.close()


async def lead(node: ClusterNode, store: MemoryStore, *, allow_data_loss: bool = False) -> None:
    """Make the partition, and wait until the node leads it."""
    record = new_partition((A,), {A: node.membership.session}, allow_data_loss=allow_data_loss)
    assert record is not None
    await store.commit([], [Put(partition_key(P), encode(record))])
    async with asyncio.timeout(_SECONDS_MAX):
        while not (replica := node.replica_manager.replica(P)) or not replica.is_leading:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@async_test
async def test_a_replica_is_taken_up_again() -> None:
    surprises = [ValueError("nobody foresaw this")]

    def surprise(_: PartitionId) -> tuple[tuple[str, LogSettings], ...]:
        if surprises:
            raise surprises.pop()
        return LOGS

    async with member(logs_of=surprise) as (node, store, told):
        await lead(node, store)
        assert told == ["nobody foresaw this"]


@async_test
async def test_a_change_that_was_not_taken_up_is_told_again() -> None:
    surprises = [ValueError("nobody foresaw this")]

    def surprise(changes: tuple[Entry | Delete, ...], _revision: int) -> None:
        if surprises and any(change.key == partition_key(P) for change in changes):
            raise surprises.pop()

    async with member(listener=ClusterListener(committed=surprise)) as (node, store, told):
        await lead(node, store)
        assert told == ["nobody foresaw this"]


@async_test
async def test_a_lease_is_kept_after_an_answer_that_nobody_foresaw() -> None:
    async with member() as (_, store, told):
        renewed = asyncio.Event()
        keep_alive: Any = store.keep_alive
        surprises = [ValueError("nobody foresaw this")]

        async def surprise(lease: Any) -> int:
            if surprises:
                raise surprises.pop()
            renewed.set()
            return int(await keep_alive(lease))

        setattr(store, "keep_alive", surprise)  # noqa: B010 - mypy minds assignments to methods
        async with asyncio.timeout(_SECONDS_MAX):
            await renewed.wait()
        assert told == ["nobody foresaw this"]


@async_test
async def test_a_leader_whose_log_fails_in_its_upkeep_leads_no_more_and_opens_it_again() -> None:
    async with member() as (node, store, told):
        await lead(node, store)
        failed = node.replica_manager.replica(P)
        assert failed is not None
        disk: Any = node._disk
        leading = failed.leading
        disk.fail("sync", errno.EIO, times=1)
        with pytest.raises(LogFailed):
            await failed.logs[0].log.checkpoint()
        assert leading.is_over
        with pytest.raises(NotLeader):
            leading.publish(batch_of(b"one"))
        await until_leads_anew(node, failed)
        again = node.replica_manager.replica(P)
        assert again is not None
        await again.leading.publish(batch_of(b"two")).committed
        assert told == []


@async_test
async def test_a_leader_that_could_not_write_down_its_epoch_is_elected_again() -> None:
    async with member() as (node, store, told):
        disk: Any = node._disk
        fault = disk.fail("sync", errno.EIO, times=1, path="*/replica.new")
        await lead(node, store)
        assert fault.hits == 1
        assert (await record_in(store)).epoch > 1
        replica = node.replica_manager.replica(P)
        assert replica is not None
        await replica.leading.publish(batch_of(b"one")).committed
        assert told == []


@async_test
async def test_the_only_replica_goes_on_with_what_is_left_where_data_may_be_lost() -> None:
    async with member() as (node, store, told):
        await lead(node, store, allow_data_loss=True)
        damaged = node.replica_manager.replica(P)
        assert damaged is not None
        await damaged.leading.publish(batch_of(b"one")).committed
        damaged.met_damage(CorruptLog("the end of the log is lost"))
        await until_leads_anew(node, damaged)
        again = node.replica_manager.replica(P)
        assert again is not None
        assert again.logs[0].log.next_offset == 1
        assert told == []


@async_test
async def test_the_only_replica_begins_anew_after_rot_where_data_may_be_lost() -> None:
    async with member() as (node, store, told):
        await lead(node, store, allow_data_loss=True)
        rotten = node.replica_manager.replica(P)
        assert rotten is not None
        await rotten.leading.publish(batch_of(b"one")).committed
        disk: Any = node._disk
        folder = f"/node/partitions/{P}/data"
        (segment,) = [name for name in disk.list_folder(folder) if name.endswith(".log")]
        disk.flip_bit(f"{folder}/{segment}", rotten.logs[0].log.size - 1, 0)
        await rotten.scrub()
        await until_leads_anew(node, rotten)
        again = node.replica_manager.replica(P)
        assert again is not None
        assert again.logs[0].log.next_offset == 0
        await again.leading.publish(batch_of(b"two")).committed
        assert told == []


@async_test
async def test_the_only_replica_waits_for_an_operator_where_no_data_may_be_lost() -> None:
    async with member() as (node, store, _):
        await lead(node, store)
        damaged = node.replica_manager.replica(P)
        assert damaged is not None
        damaged.met_damage(CorruptLog("the end of the log is lost"))
        async with asyncio.timeout(_SECONDS_MAX):
            while (await record_in(store)).lost != (A,):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert node.replica_manager.damaged == {P}


async def until_leads_anew(node: ClusterNode, before: Replica) -> None:
    async with asyncio.timeout(_SECONDS_MAX):
        while not _leads_anew(node, before):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def _leads_anew(node: ClusterNode, before: Replica) -> bool:
    replica = node.replica_manager.replica(P)
    return replica is not None and replica is not before and replica.is_leading


@async_test
async def test_a_node_that_cannot_open_its_replica_does_not_keep_the_lead() -> None:
    other = Put(node_key(B), encode(NodeRecord(id=B, session=SessionId(7))))
    async with member(stored=[other]) as (node, store, told):
        disk: Any = node._disk
        disk.fail("make_folder", errno.EIO, times=None, path="/node/partitions/*")
        record = new_partition((A, B), {A: node.membership.session, B: SessionId(7)}, min_in_sync=2)
        assert record is not None
        assert record.leader == A
        await store.commit([], [Put(partition_key(P), encode(record))])
        async with asyncio.timeout(_SECONDS_MAX):
            while (now := await record_in(store)).leader != B:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (now.in_sync, now.eligible, now.epoch) == ((B,), (A,), record.epoch + 1)
        assert told == []


def found(disk: str) -> list[Put]:
    """A partition whose only replica in sync is away, and node a eligible, with this disk."""
    record = PartitionRecord(replicas=(B, A), leader=B, in_sync=(B,), eligible=(A,), min_in_sync=2)
    return [Put(partition_key(P), encode(record)), Put(DISKS + A, disk.encode())]


async def record_in(store: MemoryStore) -> PartitionRecord:
    entry = await store.get(partition_key(P))
    assert entry is not None
    return decode(entry.value, PartitionRecord)


@async_test
async def test_a_node_that_kept_its_disk_is_still_eligible_and_leads() -> None:
    async with member(stored=found("disk")) as (_, store, _told), asyncio.timeout(_SECONDS_MAX):
        while (record := await record_in(store)).leader != A:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert (record.in_sync, record.eligible) == ((A,), (B,))


@async_test
async def test_a_node_with_another_disk_is_not_eligible() -> None:
    async with member(stored=found("another disk")) as (_, store, _told):
        record = await record_in(store)
        assert (record.leader, record.in_sync, record.eligible) == (B, (B,), ())


@async_test
async def test_a_node_that_is_refused_is_not_known_by_its_new_disk() -> None:
    """Until its old registration ends, a leader may let it join by what it told under that."""
    store = MemoryStore(SystemClock())
    old = Put(node_key(A), encode(NodeRecord(id=A, session=SessionId(7), disk="another disk")))
    with pytest.raises(InvalidSetting, match="another node is named 'a'"):
        async with member(stored=[old, Put(DISKS + A, b"another disk")], store=store):
            pass
    entry = await store.get(DISKS + A)
    assert entry is not None
    assert entry.value == b"another disk"


@async_test
async def test_a_node_that_starts_is_not_eligible_where_messages_are_not_synced() -> None:
    unsynced = (LogDefinition("data", LogSettings(durability=Durability.OS)),)
    async with member(lambda _: unsynced, stored=found("disk")) as (_, store, _told):
        record = await record_in(store)
        assert (record.leader, record.in_sync, record.eligible) == (B, (B,), ())
