"""Receiving and acknowledging: in batches, one at a time, and by many subscriptions of one topic."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

import uvloop

from benchmarks.harness.bench import Bench
from benchmarks.harness.child import Child, served
from benchmarks.harness.deadline import deadline
from benchmarks.harness.raw_client import publish_pipelined
from benchmarks.harness.row import Row, at_least
from benchmarks.log.subject import ready_batch
from quiver import AsyncClient, Client

_BATCH = 500
_CONSUMERS = 4
_ONE_BY_ONE_CONSUMERS = 16
_SUBSCRIPTIONS = 5
_SECONDS_MAX = 60.0

Take = Callable[[AsyncClient, str], Awaitable[int]]
"""Receives and acknowledges some messages of a subscription; how many."""


async def _take_batch(client: AsyncClient, subscription: str) -> int:
    batch = await client.receive_batch(subscription, _BATCH)
    if batch.num_rows:
        await client.ack(subscription, batch)
    return int(batch.num_rows)


async def _take_messages(client: AsyncClient, subscription: str) -> int:
    messages = await client.receive(subscription, _BATCH)
    await client.ack(subscription, messages)
    return len(messages)


async def _take_one(client: AsyncClient, subscription: str) -> int:
    messages = await client.receive(subscription, 1)
    for message in messages:
        await message.ack()
    return len(messages)


def receive_and_ack(bench: Bench) -> list[Row]:
    count = bench.pick(200_000, 2_000)
    ways: dict[str, tuple[Take, float]] = {
        "Arrow batches": (_take_batch, 550_000),
        "message objects": (_take_messages, 300_000),
    }
    rates: dict[str, list[float]] = {way: [] for way in ways}
    with bench.folder() as folder, served(folder) as node:
        _warm_up(node)
        for turn in range(bench.pick(3, 1)):
            for place, (way, (take, _)) in enumerate(ways.items()):
                queue = f"queue-{turn}-{place}"
                uvloop.run(_create(node, queue, []))
                _fill(node, queue, count)
                rates[way].append(_rate(node, take, [queue] * _CONSUMERS, count))
    return [
        Row(
            name=f"receive and ack {_BATCH} x 1 KB as {way}",
            value=statistics.median(rates[way]),
            unit="msg/s",
            target=at_least(target),
            note=f"durable acks; {_CONSUMERS} consumers in one process, a queue of one partition",
        )
        for way, (_, target) in ways.items()
    ]


def receive_with_one_client(bench: Bench) -> list[Row]:
    count = bench.pick(100_000, 2_000)
    rates = []
    with bench.folder() as folder, served(folder) as node:
        _warm_up(node)
        for turn in range(bench.pick(3, 1)):
            queue = f"queue-{turn}"
            uvloop.run(_create(node, queue, []))
            _fill(node, queue, count)
            rates.append(_blocking_rate(node, queue, count))
    return [
        Row(
            name=f"receive and ack {_BATCH} x 1 KB as message objects, one blocking client",
            value=statistics.median(rates),
            unit="msg/s",
            target=at_least(300_000),
            note="durable acks; each receive waits for the ack before it; a queue of one partition",
        )
    ]


def receive_one_at_a_time(bench: Bench) -> list[Row]:
    count = bench.pick(3_000, 100)
    rates = []
    with bench.folder() as folder, served(folder) as node:
        for turn in range(bench.pick(3, 1)):
            queue = f"queue-{turn}"
            uvloop.run(_create(node, queue, []))
            _fill(node, queue, count)
            rates.append(_rate(node, _take_one, [queue] * _ONE_BY_ONE_CONSUMERS, count))
    return [
        Row(
            name=f"receive and ack 1 KB one at a time, {_ONE_BY_ONE_CONSUMERS} consumers",
            value=statistics.median(rates),
            unit="msg/s",
            target=at_least(5_000),
            note="durable acks; tasks of one process",
        )
    ]


def fan_out(bench: Bench) -> list[Row]:
    count = bench.pick(100_000, 2_000)
    ways: dict[str, tuple[Take, float]] = {
        "Arrow batches": (_take_batch, 500_000),
        "message objects": (_take_messages, 400_000),
    }
    rates: dict[str, list[float]] = {way: [] for way in ways}
    with bench.folder() as folder, served(folder) as node:
        for turn in range(bench.pick(3, 1)):
            for place, (way, (take, _)) in enumerate(ways.items()):
                topic = f"topic-{turn}-{place}"
                names = [f"{topic}-{number}" for number in range(_SUBSCRIPTIONS)]
                uvloop.run(_create(node, topic, names))
                _fill(node, topic, count)
                rates[way].append(_rate(node, take, names, _SUBSCRIPTIONS * count))
    return [
        Row(
            name=f"fan-out of 1 KB to {_SUBSCRIPTIONS} subscriptions as {way}, deliveries in all",
            value=statistics.median(rates[way]),
            unit="msg/s",
            target=at_least(target),
            note=f"received and acked {_BATCH} at a time; one process",
        )
        for way, (_, target) in ways.items()
    ]


async def _create(node: Child, name: str, subscriptions: list[str]) -> None:
    """A queue, or a topic if subscriptions are named."""
    async with AsyncClient(node.url) as client:
        if not subscriptions:
            await client.create_queue(name, durability="fsync")
            return
        await client.create_topic(name, durability="fsync")
        for subscription in subscriptions:
            await client.create_subscription(subscription, [name], start="earliest")


def _warm_up(node: Child) -> None:
    uvloop.run(_create(node, "warm-up", []))
    _fill(node, "warm-up", 1_000)
    _rate(node, _take_batch, ["warm-up"], 1_000)


def _fill(node: Child, topic: str, messages: int) -> None:
    size = min(1_000, messages)
    publish_pipelined(node.address, topic, [ready_batch(size, 1_000)], messages // size)


def _rate(node: Child, take: Take, subscriptions: list[str], expected: int) -> float:
    """Messages in a second, a consumer for each of ``subscriptions``, until all are taken."""

    async def run() -> float:
        left = expected

        async def consume(subscription: str) -> None:
            nonlocal left
            while left > 0:
                taken = await take(client, subscription)
                left -= taken
                if not taken:  # others have the last ones
                    await asyncio.sleep(0.001)

        async with asyncio.timeout(_SECONDS_MAX), AsyncClient(node.url) as client:
            await client.list_topics()
            began = time.perf_counter()
            await asyncio.gather(*map(consume, subscriptions))
            seconds = time.perf_counter() - began
        assert left == 0, "no message is delivered twice here"
        return expected / seconds

    return uvloop.run(run())


def _blocking_rate(node: Child, queue: str, expected: int) -> float:
    """Messages in a second, one receive and one ack after the other."""
    with Client(node.url) as client, deadline(_SECONDS_MAX):
        client.list_topics()
        began, left = time.perf_counter(), expected
        while left > 0:
            messages = client.receive(queue, _BATCH)
            client.ack(queue, messages)
            left -= len(messages)
        return expected / (time.perf_counter() - began)
