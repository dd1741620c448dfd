"""How late a copy is where nothing holds it up, beside the topic that it is copied from."""

from __future__ import annotations

import asyncio
import time

import uvloop

from benchmarks.harness.bench import Bench
from benchmarks.harness.latency import at_rate, latency_rows
from benchmarks.harness.row import Row
from benchmarks.mirror.stage import TOPIC, Stage, two_nodes, wait
from quiver import AsyncClient

_RATE = 50
_SECONDS_MAX = 60.0


def copy_when_idle(bench: Bench) -> list[Row]:
    with two_nodes(bench) as stage:
        end = stage.publish(1)
        stage.here.create_mirror("near", stage.source.url, TOPIC)
        wait(lambda: stage.copied(TOPIC) == end)
        uvloop.run(_lags(stage, 10))
        rounds = [uvloop.run(_lags(stage, bench.pick(250, 10))) for _ in range(bench.pick(3, 1))]
    return latency_rows(
        f"publish until a reader of the copy has it, {_RATE}/s",
        [copy for copy, _ in rounds],
        (50.0, 50.0),
        [source for _, source in rounds],
        "a reader of the source",
        note="messages of 1 KB, fsync, both nodes and the clients share the cores",
    )


async def _lags(stage: Stage, count: int) -> tuple[list[float], list[float]]:
    """Seconds from when each was due until a reader had it: one of the copy, one of the source."""
    body = bytes(1_000)
    async with (
        asyncio.timeout(_SECONDS_MAX),
        AsyncClient(stage.target.url) as here,
        AsyncClient(stage.source.url) as there,
    ):
        start = (await there.describe_topic(TOPIC)).partitions[0].next_offset or 0
        arriving = [
            asyncio.create_task(_arrivals(client, start, count)) for client in (here, there)
        ]
        due, _ = await at_rate(_RATE, count, lambda _: there.publish(TOPIC, body))
        copied, read = await asyncio.gather(*arriving)
    return (
        [at - began for at, began in zip(copied, due, strict=True)],
        [at - began for at, began in zip(read, due, strict=True)],
    )


async def _arrivals(client: AsyncClient, start: int, count: int) -> list[float]:
    arrived: list[float] = []
    async with client.read(TOPIC, start=start, follow=True) as reader:
        async for batch in reader:
            arrived += [time.monotonic()] * batch.num_rows
            if len(arrived) >= count:
                return arrived
    return arrived
