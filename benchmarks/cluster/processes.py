"""One machine with a process for each of two cores, against one process."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Barrier

import msgspec
import uvloop

from benchmarks.harness.bench import Bench
from benchmarks.harness.child import Child, served
from benchmarks.harness.raw_client import RawConnection
from benchmarks.harness.rounds import compare
from benchmarks.harness.row import Row, ratio_at_least, ratio_at_most
from benchmarks.log.subject import ready_batch
from quiver import Client, protocol

_PROCESSES = 2
_PARTITIONS = 4
_MESSAGES = 10
"""In a batch. Each batch is a publish with a sync, and so most of the work is the node's."""
_UNANSWERED = 8
"""Batches of one publisher to one partition."""
_STARTING_S_MAX = 60.0
_SECONDS_MAX = 120.0


class Measured(msgspec.Struct, frozen=True):
    rate: float
    cpu_us: float
    """Of all processes of the node, for each message."""


def serve_with_two_processes(bench: Bench) -> list[Row]:
    batches = bench.pick(3_000, 20)
    costs: dict[int, list[float]] = {}

    def rate(node: Child) -> float:
        measured = measure(node, batches)
        costs.setdefault(node.pid, []).append(measured.cpu_us)
        return measured.rate

    with (
        bench.folder() as folder,
        bench.folder() as alone,
        served(folder, "--processes", str(_PROCESSES)) as several,
        served(alone) as single,
    ):
        compared = compare(bench.pick(5, 1), lambda: rate(several), lambda: rate(single))
        cpu_several, cpu_single = (min(costs[node.pid]) for node in (several, single))
    note = (
        f"two client processes publish ready batches of {_MESSAGES} x 1 KB, two receive and ack "
        f"Arrow batches; fsync, {_PARTITIONS} partitions; the clients share the cores"
    )
    return [
        Row(
            name=f"processes: {_PROCESSES}; publish and consume from four client processes",
            value=compared.value,
            unit="msg/s",
            yardstick=compared.yardstick,
            yardstick_name="one process",
            ratio=compared.ratio,
            target=ratio_at_least(1.3),
            note=note,
        ),
        Row(
            name=f"processes: {_PROCESSES}; CPU of the node for each message, published and consumed",
            value=cpu_several,
            unit="µs",
            yardstick=cpu_single,
            yardstick_name="one process",
            ratio=cpu_several / cpu_single,
            target=ratio_at_most(1.1),
            note=note,
        ),
    ]


def measure(node: Child, batches: int) -> Measured:
    """Two client processes publish so many batches each, and two consume all of them."""
    with Client(node.url) as client:
        name = f"t{time.monotonic_ns()}"
        client.create_topic(name, partitions=_PARTITIONS)
        client.create_subscription(name, [name])
        partitions = client.describe_topic(name).partitions
    leaders = {one.index: one.leader or node.ready["native"] for one in partitions}
    messages = 2 * batches * _MESSAGES
    context = multiprocessing.get_context("spawn")
    ready, left = context.Barrier(5), context.Value("q", messages)
    children = [
        *(
            context.Process(
                target=_publish, args=(leaders, name, batches, half, ready), daemon=True
            )
            for half in range(2)
        ),
        *(
            context.Process(target=_consume, args=(node.url, name, left, ready), daemon=True)
            for _ in range(2)
        ),
    ]
    for child in children:
        child.start()
    ready.wait(_STARTING_S_MAX)
    cpu, began = node.family_cpu_seconds(), time.perf_counter()
    for child in children:
        child.join()
        assert child.exitcode == 0
    seconds = time.perf_counter() - began
    return Measured(messages / seconds, (node.family_cpu_seconds() - cpu) / messages * 1e6)


def _publish(leaders: dict[int, str], topic: str, count: int, seed: int, ready: Barrier) -> None:
    batches = [ready_batch(_MESSAGES, 1_000, seed * 100 + one) for one in range(16)]
    left = list(range(count))

    async def publisher(connection: RawConnection, partition: int) -> None:
        while left:
            batch = batches[left.pop() % len(batches)]
            await connection.ask(protocol.Publish(topic=topic, partition=partition), batch)

    async def publish() -> None:
        opened = {
            partition: await RawConnection.connect((host, int(port)))
            for partition, address in leaders.items()
            for host, _, port in [address.rpartition(":")]
        }
        ready.wait(_STARTING_S_MAX)
        async with asyncio.timeout(_SECONDS_MAX):
            await asyncio.gather(
                *(
                    publisher(connection, partition)
                    for partition, connection in opened.items()
                    for _ in range(_UNANSWERED)
                )
            )

    uvloop.run(publish())


def _consume(url: str, subscription: str, left: Synchronized[int], ready: Barrier) -> None:
    with Client(url) as client:
        ready.wait(_STARTING_S_MAX)
        until = time.monotonic() + _SECONDS_MAX
        while left.value > 0:
            assert time.monotonic() < until
            batch = client.receive_batch(subscription, wait=0.05)
            if batch.num_rows:
                client.ack(subscription, batch)
                with left.get_lock():
                    left.value -= batch.num_rows
