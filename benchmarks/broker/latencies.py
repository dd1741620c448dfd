"""How long a durable publish takes at a modest rate, and how soon a follower reads it."""

from __future__ import annotations

import asyncio
import contextlib
import time

import uvloop

from benchmarks.broker.bare_server import bare_server
from benchmarks.harness.bench import Bench
from benchmarks.harness.child import Child, served
from benchmarks.harness.latency import at_rate, latency_rows
from benchmarks.harness.raw_client import RawConnection
from benchmarks.harness.row import Row
from benchmarks.log.subject import ready_batch
from quiver import AsyncClient, AsyncReader, protocol

RATE = 500
_LIMITS_MS = (1.5, 10.0)
_SECONDS_MAX = 60.0
_FILLING = bytes(992)


def publish_and_follow(bench: Bench) -> list[Row]:
    count = bench.pick(3 * RATE, RATE // 5)
    published, followed, bare_times = [], [], []
    with bench.folder() as folder, served(folder) as node, bare_server(folder) as bare:
        uvloop.run(_published(node, 50, "warm-up"))
        for turn in range(bench.pick(3, 1)):
            bare_times.append(uvloop.run(_bare(bare, count)))
            published.append(uvloop.run(_published(node, count, f"published-{turn}")))
            followed.append(uvloop.run(_followed(node, count, f"followed-{turn}")))
    return [
        *latency_rows(
            f"publish 1 KB at {RATE}/s, fsync",
            published,
            _LIMITS_MS,
            bare_times,
            "bare uvloop server, raw frames",
            "from when it was due until it was acknowledged",
        ),
        *latency_rows(
            f"publish until a follower has it, {RATE}/s, fsync",
            followed,
            _LIMITS_MS,
            note="from when the publish was due; two clients in one process",
        ),
    ]


async def _bare(bare: Child, count: int) -> list[float]:
    batch = ready_batch(1, 1_000)
    connection = await RawConnection.connect(bare.address)
    try:
        async with asyncio.timeout(_SECONDS_MAX):
            request = protocol.Publish(topic="", partition=0)
            return (await at_rate(RATE, count, lambda _: connection.ask(request, batch)))[1]
    finally:
        connection.close()


async def _published(node: Child, count: int, topic: str) -> list[float]:
    async with asyncio.timeout(_SECONDS_MAX), AsyncClient(node.url) as client:
        await client.create_topic(topic, durability="fsync")
        await client.publish(topic, _FILLING)
        _, taken = await at_rate(RATE, count, lambda place: client.publish(topic, _payload(place)))
        return taken


async def _followed(node: Child, count: int, topic: str) -> list[float]:
    async with (
        asyncio.timeout(_SECONDS_MAX),
        AsyncClient(node.url) as client,
        AsyncClient(node.url) as follower,
    ):
        await client.create_topic(topic, durability="fsync")
        async with follower.read(topic, follow=True) as reader:
            following = asyncio.create_task(_follow(reader, count + 1))
            await client.publish(topic, _payload(count))
            try:
                due, _ = await at_rate(
                    RATE, count, lambda place: client.publish(topic, _payload(place))
                )
                seen = await following
            finally:
                following.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await following
        return [seen[place] - due[place] for place in range(count)]


async def _follow(reader: AsyncReader, count: int) -> dict[int, float]:
    """When each message was read."""
    seen: dict[int, float] = {}
    async for message in reader.messages():
        seen[int.from_bytes(message.payload[:8], "big")] = time.monotonic()
        if len(seen) == count:
            break
    return seen


def _payload(place: int) -> bytes:
    return place.to_bytes(8, "big") + _FILLING
