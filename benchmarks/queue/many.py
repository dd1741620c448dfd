"""Very many queues on one node: making each, and what they cost while nothing happens."""

from __future__ import annotations

import time

import uvloop

from benchmarks.harness.bench import Bench
from benchmarks.harness.child import Child, served
from benchmarks.harness.row import Row, at_most
from quiver import AsyncClient

_CREATING_S_MAX = 30.0


def hold_many_queues(bench: Bench) -> list[Row]:
    wanted = bench.pick(10_000, 20)
    idle_s = bench.pick(5, 1)
    with bench.folder() as folder, served(folder) as node:
        before = node.memory_mb("RssAnon")
        made, seconds = uvloop.run(_create(node, wanted))
        time.sleep(1)
        used, began = node.cpu_seconds(), time.perf_counter()
        time.sleep(idle_s)
        cpu = (node.cpu_seconds() - used) / (time.perf_counter() - began)
        memory = node.memory_mb("RssAnon") - before
    short = "" if made == wanted else f"; only so many in {_CREATING_S_MAX:g} s, not {wanted:,}"
    return [
        Row(
            name=f"create a queue, {made:,} on one node",
            value=1000 * seconds / made,
            unit="ms",
            target=at_most(5),
            note=f"mean, one after the other{short}",
        ),
        Row(
            name=f"CPU with {made:,} idle queues",
            value=100 * cpu,
            unit="%",
            target=at_most(5),
            note=f"of one core, over {idle_s} s; they take {memory:.0f} MB of memory{short}",
        ),
    ]


async def _create(node: Child, wanted: int) -> tuple[int, float]:
    """How many queues were made, within the bound, and the seconds it took."""
    async with AsyncClient(node.url) as client:
        await client.create_queue("first")
        began = time.perf_counter()
        for made in range(1, wanted + 1):
            await client.create_queue(f"queue-{made}", durability="fsync")
            seconds = time.perf_counter() - began
            if seconds > _CREATING_S_MAX:
                break
    return made, seconds
