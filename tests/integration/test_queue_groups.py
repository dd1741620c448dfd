"""Consumer groups: strict order in each partition, partitions shared out, moves when members change."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path

import pytest

import quiver
from quiver.client import AsyncClient
from quiver.errors import InvalidRequest, StaleReceipt
from quiver.testing.clock import ManualClock
from tests.aio import async_test, turns
from tests.integration.queue_node import clocked


async def group(q: AsyncClient, partitions: int = 4, **settings: object) -> None:
    await q.create_topic("t", partitions=partitions)
    await q.create_subscription("g", ["t"], ordering="partition", **settings)


async def fill(q: AsyncClient, each: int, partitions: int = 4) -> None:
    for partition in range(partitions):
        for number in range(each):
            await q.publish("t", b"%d" % number, partition=partition)


@async_test
async def test_members_share_the_partitions_and_read_each_in_order(tmp_path: Path) -> None:
    async with clocked(tmp_path, ManualClock()) as q:
        await group(q)
        for member in ("ann", "bob"):
            await q.heartbeat("g", member)
        await fill(q, 20)
        owners: dict[int, set[str]] = defaultdict(set)
        read: dict[int, list[int]] = defaultdict(list)
        for _ in range(40):
            for member in ("ann", "bob"):
                messages = await q.receive("g", 7, consumer=member)
                for message in messages:
                    owners[message.partition].add(member)
                    read[message.partition].append(int(message.payload))
                await q.ack("g", messages)
        assert read == {partition: list(range(20)) for partition in range(4)}
        assert all(len(members) == 1 for members in owners.values())
        info = await q.describe_subscription("g")
        assert info.members is not None
        assert sorted(map(len, info.members.values())) == [2, 2]


@async_test
async def test_nothing_more_of_a_partition_is_delivered_while_some_of_it_is_under_way(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    async with clocked(tmp_path, clock) as q:
        await group(q, 1)
        await fill(q, 4, 1)
        first, second = await q.receive("g", 2, consumer="ann")
        assert await q.receive("g", 2, consumer="ann") == []
        await first.ack()
        await second.nack(delay=5)
        assert await q.receive("g", 2, consumer="ann") == []
        await clock.advance(5.1)
        again = await q.receive("g", 2, consumer="ann")
        assert [int(message.payload) for message in again] == [1, 2]


@async_test
async def test_a_silent_members_partitions_move_within_its_session_timeout(tmp_path: Path) -> None:
    clock = ManualClock()
    async with clocked(tmp_path, clock) as q:
        await group(q, 2, session_timeout=10)
        await fill(q, 2, 2)
        for member in ("ann", "bob"):
            await q.heartbeat("g", member)
        held = await q.receive("g", 10, consumer="ann")
        assert {message.partition for message in held} == {held[0].partition}
        for _ in range(9):
            await clock.advance(1)
            assert len(await q.heartbeat("g", "bob")) == 1
        async with asyncio.timeout(50):
            while len(await q.heartbeat("g", "bob")) == 1:
                await clock.advance(1)
                await asyncio.sleep(0.01)  # the broker looks at the disk before it looks at time
        messages = await q.receive("g", 10, consumer="bob")
        assert sorted((m.partition, int(m.payload)) for m in messages) == [
            (0, 0),
            (0, 1),
            (1, 0),
            (1, 1),
        ]
        with pytest.raises(StaleReceipt):
            await held[0].ack()


@async_test
async def test_a_partition_moves_to_a_newcomer_once_nothing_of_it_is_in_hand(
    tmp_path: Path,
) -> None:
    async with clocked(tmp_path, ManualClock()) as q:
        await group(q, 2)
        await fill(q, 3, 2)
        held = await q.receive("g", 2, consumer="ann")
        assert await q.heartbeat("g", "bob") == [f"t/{1 - held[0].partition}"]
        first = await q.receive("g", 10, consumer="bob")
        assert {message.partition for message in first} == {1 - held[0].partition}
        await q.ack("g", held)
        rest = await q.receive("g", 10, consumer="ann")
        assert [(m.partition, int(m.payload)) for m in rest] == [(held[0].partition, 2)]


@async_test
async def test_a_member_that_leaves_gives_back_what_it_holds(tmp_path: Path) -> None:
    async with clocked(tmp_path, ManualClock()) as q:
        await group(q, 1)
        await fill(q, 2, 1)
        (held, _) = await q.receive("g", 2, consumer="ann")
        waiting = asyncio.create_task(q.receive("g", 2, wait=20, consumer="bob"))
        await turns()
        await q.leave("g", "ann")
        messages = await waiting
        assert [int(message.payload) for message in messages] == [0, 1]
        assert {message.deliveries for message in messages} == {1}
        with pytest.raises(StaleReceipt):
            await held.ack()


@async_test
async def test_whoever_waits_is_alive(tmp_path: Path) -> None:
    clock = ManualClock()
    async with clocked(tmp_path, clock) as q:
        await group(q, 1, session_timeout=3)
        waiting = asyncio.create_task(q.receive("g", 2, wait=20, consumer="ann"))
        await turns()
        for _ in range(10):
            await clock.advance(1)
        info = await q.describe_subscription("g")
        assert info.members == {"ann": ["t/0"]}
        await q.publish("t", b"1")
        assert len(await waiting) == 1


@async_test
async def test_progress_and_order_survive_a_restart_of_the_broker(tmp_path: Path) -> None:
    clock = ManualClock()
    async with clocked(tmp_path, clock) as q:
        await group(q, 1, visibility=5, backoff={"min": 0})
        await fill(q, 4, 1)
        await q.ack("g", await q.receive("g", 1, consumer="ann"))
        await q.receive("g", 1, consumer="ann")
    async with clocked(tmp_path, clock) as q:
        assert await q.receive("g", 10, consumer="bob") == []
        await clock.advance(6)
        messages = await q.receive("g", 10, consumer="bob")
        assert [int(message.payload) for message in messages] == [1, 2, 3]


def test_consumers_of_one_client_are_members_under_its_name(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    q.create_topic("t", partitions=2)
    q.create_subscription("g", ["t"], ordering="partition")
    for number in range(6):
        q.publish("t", b"%d" % (number // 2), partition=number % 2)
    read: dict[int, list[int]] = defaultdict(list)
    for message in q.consume("g", prefetch=2):
        read[message.partition].append(int(message.payload))
        message.ack()
        if sum(map(len, read.values())) == 6:
            break
    assert read == {0: [0, 1, 2], 1: [0, 1, 2]}
    info = q.describe_subscription("g")
    assert info.members == {}, "who stops consuming leaves"


@async_test
async def test_a_member_needs_a_name(tmp_path: Path) -> None:
    async with clocked(tmp_path, ManualClock()) as q:
        await group(q, 1)
        q._name = ""
        with pytest.raises(InvalidRequest, match="needs a name"):
            await q.receive("g")
