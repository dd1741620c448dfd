"""A node that refuses connections: what others do at once, and what they leave alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quiver.cluster.control.failure_detector import FailureDetector
from quiver.cluster.metadata.store import Put
from quiver.cluster.records import (
    NodeId,
    NodeRecord,
    PartitionId,
    PartitionRecord,
    SessionId,
    decode,
    draining_key,
    encode,
    node_key,
    partition_key,
    session_of,
)
from quiver.cluster.replica.messages import NotLeading
from quiver.cluster.replica.network import Network
from quiver.cluster.view import ClusterView, changed
from quiver.errors import NodeGone, RequestTimeout
from quiver.model.ids import LeaderEpoch
from quiver.testing.clock import ManualClock
from quiver.testing.memory_store import MemoryStore
from tests.aio import async_test

A, B, C = (NodeId(name) for name in "abc")
P, Q = PartitionId("t/0"), PartitionId("t/1")


class Answering(Network):
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def call(self, node: NodeId, request: Any, timeout_s: float) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class World:
    """Three registered nodes, and what B makes of them."""

    def __init__(self, answer: Any = None) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)
        self.view = ClusterView(self.store, self.clock)
        self.suspected: list[NodeId] = []
        self.failure_detector = FailureDetector(
            B, self.store, Answering(answer), self.clock, self.suspected.append
        )
        self.sessions: dict[NodeId, SessionId] = {}

    async def begin(self) -> None:
        for node in (A, B, C):
            lease = await self.store.grant(60)
            self.sessions[node] = session_of(lease.id)
            record = NodeRecord(id=node, session=self.sessions[node])
            await self.store.commit([], [Put(node_key(node), encode(record), lease.id)])

    async def put(self, partition: PartitionId, *in_sync: NodeId, **fields: Any) -> None:
        record = PartitionRecord(
            replicas=(A, B, C),
            leader=in_sync[0],
            session=self.sessions[in_sync[0]],
            epoch=LeaderEpoch(4),
            in_sync=in_sync,
            **fields,
        )
        await self.store.commit([], [Put(partition_key(partition), encode(record))])

    async def look(self) -> None:
        self.failure_detector.on_state(await self.view.load(), self.sessions[B])

    async def record(self, partition: PartitionId) -> PartitionRecord:
        entry = await self.store.get(partition_key(partition))
        assert entry is not None
        return decode(entry.value, PartitionRecord)


@async_test
async def test_one_that_would_be_elected_takes_over_in_a_new_epoch() -> None:
    world = World()
    await world.begin()
    await world.put(P, A, B, C)
    await world.put(Q, A, B, C)
    await world.look()
    world.failure_detector.suspect(A)
    await world.clock.advance(0.01)
    for partition in (P, Q):
        record = await world.record(partition)
        assert (record.leader, record.session, record.epoch) == (B, world.sessions[B], 5)
        assert record.in_sync == (B, C)
    await world.failure_detector.close()


@async_test
async def test_whoever_would_not_be_elected_leaves_it_to_others() -> None:
    world = World()
    await world.begin()
    await world.put(P, A, C)
    await world.put(Q, C, A, B)
    await world.store.commit([], [Put(draining_key(B), b"")])
    await world.look()
    world.failure_detector.suspect(A)
    await world.clock.advance(0.01)
    assert (await world.record(P)).leader == A, "B is not in sync"
    assert (await world.record(Q)).leader == C, "it is not led by the suspect"
    await world.failure_detector.close()


@async_test
async def test_a_leader_that_has_started_again_is_not_meant() -> None:
    world = World()
    await world.begin()
    await world.put(P, A, B, C)
    before = await world.record(P)
    await world.look()
    lease = await world.store.grant(60)
    again = NodeRecord(id=A, session=session_of(lease.id))
    await world.store.commit([], [Put(node_key(A), encode(again), lease.id)])
    await world.look()
    world.failure_detector.suspect(A)
    await world.clock.advance(0.01)
    assert await world.record(P) == before, "its record waits for the controller"
    await world.failure_detector.close()


@async_test
async def test_a_record_that_has_changed_meanwhile_is_left_alone() -> None:
    world = World()
    await world.begin()
    await world.put(P, A, B, C)
    await world.look()
    await world.put(P, A, C)
    world.failure_detector.suspect(A)
    await world.clock.advance(0.01)
    assert (await world.record(P)).in_sync == (A, C)
    await world.failure_detector.close()


@async_test
async def test_two_that_are_gone_are_both_left_out() -> None:
    world = World()
    await world.begin()
    await world.put(P, C, A, B)
    await world.look()
    world.failure_detector.suspect(A)
    await world.clock.advance(0.01)
    world.failure_detector.suspect(C)
    await world.clock.advance(0.01)
    assert (await world.record(P)).in_sync == (B,)
    await world.failure_detector.close()


@async_test
async def test_one_that_was_heard_of_again_is_not_gone() -> None:
    world = World()
    await world.begin()
    await world.put(P, C, A, B)
    await world.look()
    world.failure_detector.suspect(A)
    await world.clock.advance(0.01)
    world.failure_detector.heard(A)
    world.failure_detector.suspect(C)
    await world.clock.advance(0.01)
    assert (await world.record(P)).leader == C, "A is the one to be elected"
    await world.failure_detector.close()


@async_test
async def test_told_often_it_acts_now_and_then() -> None:
    world = World()
    await world.begin()
    await world.look()
    for _ in range(100):
        world.failure_detector.suspect(A)
        await world.clock.advance(0.01)
    assert world.suspected[0] == A
    assert len(world.suspected) < 6
    await world.failure_detector.close()


@pytest.mark.parametrize(
    ("answer", "gone"),
    [
        (NodeGone(), True),
        (RequestTimeout(), False),
        (NotLeading(epoch=LeaderEpoch(0)), False),
    ],
)
def test_a_broken_connection_is_looked_after(answer: Any, gone: bool) -> None:
    async def look() -> None:
        world = World(answer)
        await world.begin()
        await world.put(P, A, B, C)
        await world.look()
        world.failure_detector.look_after(A)
        await world.clock.advance(0.01)
        assert ((await world.record(P)).leader == B) is gone
        await world.failure_detector.close()

    asyncio.run(look())


@async_test
async def test_what_a_commit_does_not_concern_is_the_same_object_as_before() -> None:
    world = World()
    await world.begin()
    await world.put(P, A, B, C)
    await world.put(Q, A, B, C)
    before = await world.view.load()
    assert before.touched is None
    revision = before.revision
    await world.put(P, B, C)
    await world.store.commit([], [Put(draining_key(C), b"")])
    first, second = world.store.changes_after("", revision)[0]
    after = changed(before, first.revision, first.changes)
    assert after.touched == {P}
    assert (after.nodes is before.nodes, after.draining is before.draining) == (True, True)
    assert after.partitions[P].record.leader == B
    assert after.partitions[Q] is before.partitions[Q]
    last = changed(after, second.revision, second.changes)
    assert (last.partitions is after.partitions, list(last.draining)) == (True, [C])
    assert not last.touched
