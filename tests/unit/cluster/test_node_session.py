"""Being alive, as others see it: registering, keeping the lease, losing it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from quiver.cluster.metadata.sqlite import SqliteStore
from quiver.cluster.node_session import NodeSession
from quiver.cluster.records import NOBODY, NodeId, NodeRecord, SessionId, decode, node_key
from quiver.errors import InvalidSetting
from quiver.testing.clock import ManualClock
from tests.aio import async_test

A = NodeId("a")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "metadata.db")


@asynccontextmanager
async def opened(path: str) -> AsyncIterator[tuple[SqliteStore, ManualClock]]:
    clock = ManualClock()
    store = await SqliteStore.open(path, clock)
    try:
        yield store, clock
    finally:
        await store.close()


async def settled(store: SqliteStore) -> None:
    """Everything asked of the store so far has been answered and acted on."""
    for _ in range(10):
        await store.get("any")


@asynccontextmanager
async def kept(membership: NodeSession) -> AsyncIterator[None]:
    keeping = asyncio.create_task(membership.keep())
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])


@async_test
async def test_others_learn_that_the_disk_is_full_and_that_it_has_space_again(path: str) -> None:
    async with opened(path) as (store, clock):
        full = False
        membership = NodeSession(store, clock, NodeRecord(id=A), 3, disk_is_full=lambda: full)
        session = await membership.join()
        async with kept(membership):
            for full in (True, False):
                await settled(store)
                await clock.advance(1)
                await settled(store)
                entry = await store.get(node_key(A))
                assert entry is not None
                assert decode(entry.value, NodeRecord).disk_is_full is full
        assert membership.session == session


@async_test
async def test_a_node_that_joins_is_registered_under_its_session(path: str) -> None:
    async with opened(path) as (store, clock):
        membership = NodeSession(store, clock, NodeRecord(id=A, zone="z"), 3)
        session = await membership.join()
        entry = await store.get(node_key(A))
        assert entry is not None
        assert decode(entry.value, NodeRecord) == NodeRecord(id=A, zone="z", session=session)
        assert membership.proven_until == clock.monotonic() + 3


@async_test
async def test_a_node_that_keeps_its_lease_stays(path: str) -> None:
    async with opened(path) as (store, clock):
        membership = NodeSession(store, clock, NodeRecord(id=A), 3)
        session = await membership.join()
        async with kept(membership):
            for _ in range(20):
                await clock.advance(0.9)
                await settled(store)
            assert membership.session == session
            assert await store.get(node_key(A)) is not None


@async_test
async def test_a_node_that_does_not_is_gone_after_the_lease(path: str) -> None:
    async with opened(path) as (store, clock):
        await NodeSession(store, clock, NodeRecord(id=A), 3).join()
        await clock.advance(3.1)
        await settled(store)
        assert await store.get(node_key(A)) is None


@async_test
async def test_a_lost_lease_is_told_and_followed_by_a_new_session(path: str) -> None:
    async with opened(path) as (store, clock):
        told: list[SessionId] = []
        membership = NodeSession(store, clock, NodeRecord(id=A), 3, on_session=told.append)
        first = await membership.join()
        await clock.advance(3.1)  # nobody kept it alive
        await settled(store)
        async with kept(membership):
            for _ in range(5):
                await clock.advance(0.1)
                await settled(store)
            assert told[:2] == [first, NOBODY]
            assert membership.session == told[2] not in (first, NOBODY)


@async_test
async def test_a_process_that_starts_again_takes_its_name_over(path: str) -> None:
    async with opened(path) as (store, clock):
        first = await NodeSession(store, clock, NodeRecord(id=A, disk="d"), 3).join()
        second = await NodeSession(store, clock, NodeRecord(id=A, disk="d"), 3).join()
        entry = await store.get(node_key(A))
        assert entry is not None
        assert decode(entry.value, NodeRecord).session == second != first


@async_test
async def test_another_node_of_the_same_name_is_refused(path: str) -> None:
    async with opened(path) as (store, clock):
        await NodeSession(store, clock, NodeRecord(id=A, disk="one"), 3).join()
        with pytest.raises(InvalidSetting, match="another node"):
            await NodeSession(store, clock, NodeRecord(id=A, disk="two"), 3).join()


@async_test
async def test_a_node_that_leaves_is_gone_at_once(path: str) -> None:
    async with opened(path) as (store, clock):
        membership = NodeSession(store, clock, NodeRecord(id=A), 3)
        await membership.join()
        await membership.leave()
        assert await store.get(node_key(A)) is None
        assert membership.proven_until == 0
