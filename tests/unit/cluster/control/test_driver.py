"""The controller's office: one holds it, and whoever held it before changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from quiver.cluster.control.controller import ControllerSettings
from quiver.cluster.control.driver import ControllerDriver
from quiver.cluster.metadata.store import Expect, LeaseId, MetadataStore, Put
from quiver.cluster.records import (
    CONTROLLER,
    ControllerRecord,
    NodeId,
    NodeRecord,
    PartitionId,
    PartitionRecord,
    SessionId,
    VersionedPartition,
    decode,
    encode,
    node_key,
    partition_key,
    session_of,
)
from quiver.cluster.state import ClusterState
from quiver.cluster.view import ClusterView
from quiver.model.ids import LeaderEpoch
from quiver.testing.clock import ManualClock
from quiver.testing.memory_store import MemoryStore
from tests.aio import async_test

A, B = NodeId("a"), NodeId("b")
P = PartitionId("t/0")


async def register(store: MetadataStore, node: NodeId) -> SessionId:
    lease = await store.grant(60)
    session = session_of(lease.id)
    record = NodeRecord(id=node, session=session)
    await store.commit([], [Put(node_key(node), encode(record), lease.id)])
    return session


async def put_unled_partition(store: MetadataStore) -> None:
    record = PartitionRecord(
        replicas=(A, B), leader=A, in_sync=(A, B), epoch=LeaderEpoch(4), session=SessionId(1)
    )
    await store.commit([], [Put(partition_key(P), encode(record))])


async def partition(store: MetadataStore) -> PartitionRecord:
    entry = await store.get(partition_key(P))
    assert entry is not None
    return decode(entry.value, PartitionRecord)


@asynccontextmanager
async def running(controller_driver: ControllerDriver) -> AsyncIterator[None]:
    task = asyncio.create_task(controller_driver.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def told(
    store: MetadataStore, clock: ManualClock, *whom: tuple[ControllerDriver, SessionId]
) -> None:
    """Everyone learns the present state, and has time to act on it."""
    for _ in range(3):
        state = await ClusterView(store, clock).load()
        for controller_driver, session in whom:
            controller_driver.on_state(state, session)
        await clock.advance(0.01)


@async_test
async def test_one_of_two_takes_the_office_and_elects() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    one, other = (ControllerDriver(node, store, clock, ControllerSettings()) for node in (A, B))
    sessions = [await register(store, node) for node in (A, B)]
    await put_unled_partition(store)
    async with running(one), running(other):
        await told(store, clock, (one, sessions[0]), (other, sessions[1]))
    entry = await store.get(CONTROLLER)
    assert entry is not None
    assert decode(entry.value, ControllerRecord).node in (A, B)
    record = await partition(store)
    assert (record.leader, record.session, record.epoch) == (A, sessions[0], 5), "elected once"


@async_test
async def test_a_controller_that_was_replaced_changes_nothing() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    controller_driver = ControllerDriver(A, store, clock, ControllerSettings())
    session = await register(store, A)
    revision = await store.commit(
        [], [Put(CONTROLLER, encode(ControllerRecord(A, session)), LeaseId(session))]
    )
    await put_unled_partition(store)
    state = await ClusterView(store, clock).load()
    assert state.controller_revision == revision
    # Another takes the office, and this node has not heard of it.
    await store.commit(
        [Expect(CONTROLLER, revision)], [Put(CONTROLLER, encode(ControllerRecord(B, session)))]
    )
    async with running(controller_driver):
        controller_driver.on_state(state, session)
        await clock.advance(5)
    assert (await partition(store)).epoch == 4


@async_test
async def test_a_decision_about_a_record_that_has_changed_is_dropped() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    controller_driver = ControllerDriver(A, store, clock, ControllerSettings())
    session = await register(store, A)
    await store.commit(
        [], [Put(CONTROLLER, encode(ControllerRecord(A, session)), LeaseId(session))]
    )
    await put_unled_partition(store)
    before = await ClusterView(store, clock).load()
    changed = msgspec.structs.replace(await partition(store), epoch=LeaderEpoch(9))
    await store.commit([], [Put(partition_key(P), encode(changed))])
    async with running(controller_driver):
        controller_driver.on_state(before, session)
        await clock.advance(0.5)
    assert await partition(store) == changed


@async_test
async def test_a_view_goes_on_where_it_was_after_reading_everything_anew() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    seen: list[ClusterState] = []
    view = ClusterView(store, clock, on_change=seen.append)
    await view.load()
    following = asyncio.create_task(view.follow())
    for number in range(3):
        await put_unled_partition(store)
        if number == 1:
            await view.load()
        await clock.advance(0.01)
    following.cancel()
    await asyncio.wait([following])
    revisions = [state.revision for state in seen]
    assert revisions == sorted(revisions)
    assert isinstance(seen[-1].partitions[P], VersionedPartition)
    assert seen[-1].partitions[P].revision == (await store.list("")).revision
