"""The secret of the nodes: made once, replaced while they run, and the old one counts for a while."""

from __future__ import annotations

import asyncio

from quiver.edge.peers.secrets import OVERLAP_S, PeerSecrets
from quiver.testing.clock import ManualClock
from quiver.testing.memory_store import MemoryStore
from tests.aio import async_test


async def _until(reached: object) -> None:
    async with asyncio.timeout(20):
        while not reached():  # type: ignore[operator]  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0)


@async_test
async def test_all_nodes_take_the_new_secret_and_the_old_one_ends() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    one = await PeerSecrets.open(store, clock)
    other = await PeerSecrets.open(store, clock)
    old = one.current
    assert other.current == old
    assert old.startswith("peer_")
    one.start()
    other.start()
    await one.rotate()
    await _until(lambda: other.current != old)
    assert one.current == other.current
    for node in (one, other):
        assert node.accepts(old)
        assert node.accepts(node.current)
        assert not node.accepts("peer_" + "0" * 64)
        assert not node.accepts("")
    await clock.advance(OVERLAP_S + 1)
    for node in (one, other):
        assert not node.accepts(old)
        assert node.accepts(node.current)
        await node.close()


@async_test
async def test_a_second_rotation_ends_the_first_secret_at_once() -> None:
    clock = ManualClock()
    secrets = await PeerSecrets.open(MemoryStore(clock), clock)
    first = secrets.current
    await secrets.rotate()
    second = secrets.current
    await secrets.rotate()
    assert not secrets.accepts(first)
    assert secrets.accepts(second)


@async_test
async def test_a_node_that_starts_later_accepts_the_old_secret_too() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    secrets = await PeerSecrets.open(store, clock)
    old = secrets.current
    await secrets.rotate()
    late = await PeerSecrets.open(store, clock)
    assert late.current == secrets.current
    assert late.accepts(old)
