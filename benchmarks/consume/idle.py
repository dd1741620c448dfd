"""Very many workers that wait for messages which do not come."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import uvloop

from benchmarks.harness.bench import Bench
from benchmarks.harness.child import Child, served
from benchmarks.harness.row import Row, at_most
from quiver import AsyncClient

_SETTLES_S = 2.0
_SECONDS_MAX = 120.0
_QUEUE = "idle"


def wait_idle(bench: Bench) -> list[Row]:
    consumers, seconds = bench.pick(1_000, 20), bench.pick(30, 1)
    with bench.folder() as folder, served(folder) as node:
        share = uvloop.run(_idle(node, consumers, seconds))
    return [
        Row(
            name=f"CPU with {consumers:,} idle consumers",
            value=100 * share,
            unit="%",
            target=at_most(1),
            note=f"of one core, over {seconds} s; each a client with a connection, all on one queue",
        )
    ]


async def _idle(node: Child, consumers: int, seconds: float) -> float:
    """The node's share of a core."""
    async with asyncio.timeout(_SECONDS_MAX), AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(AsyncClient(node.url)) for _ in range(consumers)]
        await clients[0].create_queue(_QUEUE, durability="fsync")
        waiting = [asyncio.create_task(_consume(client)) for client in clients]
        await asyncio.sleep(_SETTLES_S)
        before, began = node.cpu_seconds(), time.perf_counter()
        await asyncio.sleep(seconds)
        share = (node.cpu_seconds() - before) / (time.perf_counter() - began)
        assert not any(task.done() for task in waiting), "a consumer waits for ever"
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    return share


async def _consume(client: AsyncClient) -> None:
    async for message in client.consume(_QUEUE):
        await message.ack()
