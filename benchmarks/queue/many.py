"""Very many queues on one node: making each, using some, starting and stopping with all of them."""

from __future__ import annotations

import os
import signal
import statistics
import time

import uvloop

from benchmarks.harness.bench import Bench
from benchmarks.harness.child import Child, served
from benchmarks.harness.row import Row, at_most
from quiver import AsyncClient

_CREATING_S_MAX = 30.0
_STOPPING_S_MAX = 60.0
_SETTLES_S_MAX = 120


def hold_many_queues(bench: Bench) -> list[Row]:
    wanted, used = bench.pick(10_000, 20), bench.pick(1_000, 5)
    idle_s = bench.pick(5, 1)
    with bench.folder() as folder:
        with served(folder) as node:
            before = node.memory_mb("RssAnon")
            made, seconds = uvloop.run(_create(node, wanted))
            time.sleep(1)
            idle = _idle_cpu(node, idle_s)
            memory = node.memory_mb("RssAnon") - before
            first_ms = uvloop.run(_use(node, min(used, made)))
            stopped_s = _stop(node)
        with served(folder) as node:
            start_s = node.start_seconds
            _settle(node)
            idle_again = _idle_cpu(node, idle_s)
            memory_again = node.memory_mb("VmRSS")
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
            value=100 * idle,
            unit="%",
            target=at_most(3),
            note=f"of one core, over {idle_s} s; they take {memory:.0f} MB of memory{short}",
        ),
        Row(
            name=f"first publish to a queue, {made:,} on one node",
            value=first_ms,
            unit="ms",
            target=at_most(3),
            note="median",
        ),
        Row(
            name=f"stop of a node, {used:,} used queues",
            value=stopped_s,
            unit="s",
            target=at_most(1),
            note=f"of {made:,}; each was published to, and its message acknowledged",
        ),
        Row(
            name=f"start of a node with {made:,} queues",
            value=start_s,
            unit="s",
            target=at_most(5),
            note="until it is ready",
        ),
        Row(
            name=f"CPU with {made:,} idle queues, after a start",
            value=100 * idle_again,
            unit="%",
            target=at_most(3),
            note=f"of one core, once they are open; the node has {memory_again:.0f} MB of memory",
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


async def _use(node: Child, count: int) -> float:
    """Publish to so many queues and consume it; the milliseconds of a first publish, the median."""
    firsts = []
    async with AsyncClient(node.url) as client:
        await client.publish("first", b"warm")
        for number in range(1, count + 1):
            began = time.perf_counter()
            await client.publish(f"queue-{number}", b"one")
            firsts.append(time.perf_counter() - began)
            for message in await client.receive(f"queue-{number}"):
                await message.ack()
    return 1000 * statistics.median(firsts)


def _stop(node: Child) -> float:
    """Stop a node; how many seconds it took."""
    began = time.perf_counter()
    os.kill(node.pid, signal.SIGTERM)
    while time.perf_counter() - began < _STOPPING_S_MAX:
        if os.waitid(os.P_PID, node.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            break
        time.sleep(0.001)
    return time.perf_counter() - began


def _settle(node: Child) -> None:
    """Until the node has opened what its metrics and retention look at."""
    before = float("inf")
    for _ in range(_SETTLES_S_MAX):
        now = _idle_cpu(node, 1)
        if now > 0.9 * before or now < 0.02:
            return
        before = now


def _idle_cpu(node: Child, seconds: int) -> float:
    """The share of a core."""
    used, began = node.cpu_seconds(), time.perf_counter()
    time.sleep(seconds)
    return (node.cpu_seconds() - used) / (time.perf_counter() - began)
