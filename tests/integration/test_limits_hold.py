"""The limits of retention hold: what one excludes is not delivered, read or counted any more."""

from __future__ import annotations

from pathlib import Path

import pytest

import quiver
from quiver.client import AsyncClient
from quiver.errors import OffsetOutOfRange
from tests.aio import async_test
from tests.integration.queue_node import clocked
from tests.integration.test_message_status import state
from tests.integration.test_unread_messages import lost, node_clock, pass_time, start_of


async def payloads(q: AsyncClient, topic: str, start: int | str = "earliest") -> list[bytes]:
    """Everything that can be read of a topic with one partition."""
    found: list[bytes] = []
    async for batch in q.read(topic, start=start):
        found += batch.column("payload").to_pylist()
    return found


async def publish_numbers(q: AsyncClient, topic: str, count: int) -> None:
    await q.publish_many(topic, [b"%d" % number for number in range(count)])


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


@async_test
async def test_a_limit_of_ten_messages_keeps_ten_of_one_batch(tmp_path: Path) -> None:
    clock = node_clock()
    async with clocked(tmp_path, clock) as q:
        await q.create_topic("events", retention=quiver.Retention(messages=10))
        await publish_numbers(q, "events", 1070)
        await pass_time(clock, 2)
        (partition,) = (await q.describe_topic("events")).partitions
        assert (partition.start_offset, partition.next_offset) == (1060, 1070)
        assert await payloads(q, "events") == numbers(1060, 1070)
        with pytest.raises(OffsetOutOfRange) as gone:
            await payloads(q, "events", 1059)
        assert gone.value.details["first_offset"] == 1060


@async_test
async def test_what_a_limit_excludes_stays_excluded_after_a_restart(tmp_path: Path) -> None:
    clock = node_clock()
    async with clocked(tmp_path, clock) as q:
        await q.create_topic("events", retention=quiver.Retention(messages=10))
        await publish_numbers(q, "events", 100)
        await pass_time(clock, 2)
    async with clocked(tmp_path, clock) as q:
        assert await start_of(q, "events") == 90
        await q.create_subscription("late", ["events"], start="earliest")
        received = await q.receive("late", 100)
        assert [one.payload for one in received] == numbers(90, 100)


@async_test
async def test_a_subscription_gets_nothing_that_a_limit_excluded_and_the_loss_is_counted(
    tmp_path: Path,
) -> None:
    clock = node_clock()
    async with clocked(tmp_path, clock) as q:
        await q.create_topic("events", retention=quiver.Retention(messages=10, unread="drop"))
        await q.create_subscription("slow", ["events"], start="earliest")
        ids = [one.id for one in await q.publish_many("events", numbers(0, 50))]
        held = await q.receive("slow", 5)
        assert [one.payload for one in held] == numbers(0, 5)
        await pass_time(clock, 2)
        assert await lost(q) == 40
        assert (await q.describe_subscription("slow")).ready == 10
        peeked = await q.peek("slow", 100)
        assert [one.payload for one in peeked] == numbers(40, 50)
        assert [one.payload for one in await q.receive("slow", 100)] == numbers(40, 50)
        assert await state(q, "events", ids[7], "slow") == "dropped-unread"
        assert await state(q, "events", ids[45], "slow") == "leased"


@async_test
async def test_a_queue_with_an_acked_limit_excludes_each_message_once_it_is_acknowledged(
    tmp_path: Path,
) -> None:
    clock = node_clock()
    async with clocked(tmp_path, clock) as q:
        await q.create_queue("jobs", retention=quiver.Retention(acked=True))
        await publish_numbers(q, "jobs", 10)
        await q.ack("jobs", await q.receive("jobs", 4))
        await pass_time(clock, 2)
        assert await start_of(q, "jobs") == 4
        assert await payloads(q, "jobs") == numbers(4, 10)
        assert await lost(q) == 0


@async_test
async def test_a_limit_in_bytes_keeps_no_more_than_a_batch_beyond_it(tmp_path: Path) -> None:
    clock = node_clock()
    async with clocked(tmp_path, clock) as q:
        await q.create_topic("events", retention=quiver.Retention(bytes=50_000))
        for _ in range(30):
            await q.publish("events", bytes(10_000))
        await pass_time(clock, 2)
        assert await start_of(q, "events") == 25


@async_test
async def test_a_repeat_of_a_message_that_a_limit_excluded_is_still_a_repeat(
    tmp_path: Path,
) -> None:
    clock = node_clock()
    async with clocked(tmp_path, clock) as q:
        await q.create_topic("orders", retention=quiver.Retention(messages=1), dedup_window="1h")
        for number in range(5):
            await q.publish("orders", b"order", dedup_id=f"order-{number}")
        await pass_time(clock, 2)
        assert await start_of(q, "orders") == 4
    async with clocked(tmp_path, clock) as q:
        await q.publish("orders", b"order", dedup_id="order-0")
        assert (await q.describe_topic("orders")).partitions[0].next_offset == 5


async def held(q: AsyncClient, topic: str) -> list[int]:
    """How many messages each partition has."""
    partitions = (await q.describe_topic(topic)).partitions
    return [(one.next_offset or 0) - (one.start_offset or 0) for one in partitions]


async def fill(q: AsyncClient, topic: str, *counts: int) -> None:
    for partition, count in enumerate(counts):
        for payload in numbers(0, count):
            await q.publish(topic, payload, partition=partition)


@async_test
async def test_a_limit_of_the_topic_holds_for_all_partitions_together(tmp_path: Path) -> None:
    clock = node_clock()
    async with clocked(tmp_path, clock) as q:
        retention = quiver.Retention(messages=10, scope="topic")
        await q.create_topic("events", partitions=3, retention=retention)
        await fill(q, "events", 100, 2, 40)
        await pass_time(clock, 2)
        assert await held(q, "events") == [4, 2, 4]
        await q.alter_topic("events", retention={"scope": "partition"})
        await fill(q, "events", 20, 20, 20)
        await pass_time(clock, 2)
        assert await held(q, "events") == [10, 10, 10]


@async_test
async def test_a_limit_of_the_topic_in_bytes_keeps_about_that_much_of_all_partitions(
    tmp_path: Path,
) -> None:
    clock = node_clock()
    async with clocked(tmp_path, clock) as q:
        retention = quiver.Retention(bytes=300_000, scope="topic")
        await q.create_topic("events", partitions=2, retention=retention)
        for number in range(60):
            await q.publish("events", bytes(10_000), partition=number % 2)
        await pass_time(clock, 2)
        first, second = await held(q, "events")
        assert 14 <= first <= 16
        assert 14 <= second <= 16
