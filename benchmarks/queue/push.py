"""How soon a message is with a consumer that waits for it."""

from __future__ import annotations

import asyncio
import time

import uvloop

from benchmarks.harness.bench import Bench
from benchmarks.harness.child import Child, served
from benchmarks.harness.latency import at_rate, latency_rows
from benchmarks.harness.row import Row
from quiver import AsyncClient

RATE = 500
_LIMITS_MS = (2.0, 10.0)
_SECONDS_MAX = 60.0
_FILLING = bytes(992)


def push_to_a_waiting_receive(bench: Bench) -> list[Row]:
    count = bench.pick(3 * RATE, RATE // 5)
    with bench.folder() as folder, served(folder) as node:
        uvloop.run(_pushed(node, 50, "warm-up"))
        rounds = [
            uvloop.run(_pushed(node, count, f"pushed-{turn}")) for turn in range(bench.pick(3, 1))
        ]
    return latency_rows(
        f"publish to a waiting receive, {RATE}/s, fsync",
        rounds,
        _LIMITS_MS,
        note="from when the publish was due; every message is acked meanwhile; two clients in one "
        "process",
    )


async def _pushed(node: Child, count: int, queue: str) -> list[float]:
    async with (
        asyncio.timeout(_SECONDS_MAX),
        AsyncClient(node.url) as client,
        AsyncClient(node.url) as consumer,
        asyncio.TaskGroup() as tasks,
    ):
        await client.create_queue(queue, durability="fsync")
        receiving = tasks.create_task(_receive(consumer, queue, count + 1, tasks))
        await client.publish(queue, _payload(count))
        due, _ = await at_rate(RATE, count, lambda place: client.publish(queue, _payload(place)))
        seen = await receiving
    return [seen[place] - due[place] for place in range(count)]


async def _receive(
    consumer: AsyncClient, queue: str, count: int, tasks: asyncio.TaskGroup
) -> dict[int, float]:
    """When each message came. Acks go beside, so that a receive is always waiting."""
    seen: dict[int, float] = {}
    while len(seen) < count:
        messages = await consumer.receive(queue, 100, wait=5)
        now = time.monotonic()
        for message in messages:
            seen[int.from_bytes(message.payload[:8], "big")] = now
        if messages:
            tasks.create_task(consumer.ack(queue, messages))
    return seen


def _payload(place: int) -> bytes:
    return place.to_bytes(8, "big") + _FILLING
