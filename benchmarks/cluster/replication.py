"""Durable publishing to three replicas, against a single node that syncs as well."""

from __future__ import annotations

import asyncio
import time

import uvloop

from benchmarks.cluster.stage import cluster_of
from benchmarks.harness.bench import Bench
from benchmarks.harness.child import served
from benchmarks.harness.latency import at_rate, latency_rows
from benchmarks.harness.rounds import compare
from benchmarks.harness.row import Row, ratio_at_least
from quiver import AsyncClient, Client

RATE = 2_000
PARTITIONS = 4
_PAYLOAD = bytes(range(250)) * 4
_SECONDS_MAX = 120.0


def publish_to_three_replicas(bench: Bench) -> list[Row]:
    count = bench.pick(60_000, 500)
    with (
        bench.folder() as folder,
        bench.folder() as alone,
        cluster_of(folder, 3) as stage,
        served(alone) as node,
        Client(stage.url) as replicated,
        Client(node.url) as single,
    ):
        replicated.create_topic("sent", partitions=PARTITIONS, replicas=3)
        single.create_topic("sent", partitions=PARTITIONS)
        compared = compare(
            bench.pick(5, 1), lambda: send(replicated, count), lambda: send(single, count)
        )
        taken = [
            uvloop.run(_published(stage.url, bench.pick(3 * RATE, 200), f"published-{turn}"))
            for turn in range(bench.pick(3, 1))
        ]
    return [
        Row(
            name="send 1 KB one by one, three replicas, acks=quorum, fsync",
            value=compared.value,
            unit="msg/s",
            yardstick=compared.yardstick,
            yardstick_name="one node, fsync",
            ratio=compared.ratio,
            target=ratio_at_least(0.35),
            note=f"one client process, {PARTITIONS} partitions; three nodes, etcd and the client "
            "share the cores",
        ),
        *latency_rows(
            f"publish 1 KB at {RATE:,}/s, three replicas, acks=quorum, fsync",
            taken,
            (20.0, 20.0),
            note="from when it was due until it was acknowledged",
        ),
    ]


def send(client: Client, count: int) -> float:
    """Messages in a second until all were stored."""
    with client.producer("sent") as producer:
        began = time.perf_counter()
        for _ in range(count):
            producer.send(_PAYLOAD)
        producer.flush()
        return count / (time.perf_counter() - began)


async def _published(url: str, count: int, topic: str) -> list[float]:
    async with asyncio.timeout(_SECONDS_MAX), AsyncClient(url) as client:
        await client.create_topic(topic, partitions=PARTITIONS, replicas=3)
        await asyncio.gather(
            *(client.publish(topic, _PAYLOAD, partition=place) for place in range(PARTITIONS))
        )
        _, taken = await at_rate(RATE, count, lambda _: client.publish(topic, _PAYLOAD))
        return taken
