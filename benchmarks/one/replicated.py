"""A publish to three replicas: one in flight, and at modest rates."""

from __future__ import annotations

import statistics

import uvloop

from benchmarks.cluster.stage import Stage, cluster_of
from benchmarks.harness.bench import Bench
from benchmarks.harness.latency import at_rate, latency_rows
from benchmarks.harness.row import Row, at_least, at_most
from benchmarks.one.loops import Measured, repeated
from quiver import AsyncClient, Client

_PAYLOAD = bytes(1024)
_NAME = "publish 1 KB to three replicas, one in flight, acks=quorum, fsync"


def publish_replicated(bench: Bench) -> list[Row]:
    seconds, rounds = bench.pick(20, 1) / 10, bench.pick(3, 1)
    with bench.folder() as folder, cluster_of(folder, 3) as stage:
        with Client(stage.url) as client:
            client.create_topic("one", replicas=3)
            client.create_topic("three", partitions=3, replicas=3)
        lone = [_lone(stage, seconds) for _ in range(rounds)]
        slow = [_at(stage, "one", 200, bench.pick(600, 40)) for _ in range(rounds)]
        quick = [_at(stage, "three", 1_000, bench.pick(3_000, 100)) for _ in range(rounds)]
    return [
        Row(
            name=_NAME,
            value=statistics.median(one.rate for one in lone),
            unit="/s",
            target=at_least(500),
            note="blocking client; three nodes, etcd and the client share the cores",
        ),
        Row(
            name=f"{_NAME}: CPU of all nodes for each",
            value=statistics.median(one.cpu_us for one in lone),
            unit="µs",
            target=at_most(1_800),
        ),
        *latency_rows("the same at 200/s", slow, (3.5, 12.0)),
        *latency_rows("the same at 1,000/s over 3 partitions", quick, (8.0, 30.0)),
    ]


def _lone(stage: Stage, seconds: float) -> Measured:
    def cpu_seconds() -> float:
        return sum(node.cpu_seconds() for node in stage.nodes.values())

    with Client(stage.url) as client:
        return repeated(lambda: client.publish("one", _PAYLOAD), seconds, cpu_seconds)


def _at(stage: Stage, topic: str, rate: int, count: int) -> list[float]:
    async def published() -> list[float]:
        async with AsyncClient(stage.url) as client:
            await client.publish(topic, _PAYLOAD)
            return (await at_rate(rate, count, lambda _: client.publish(topic, _PAYLOAD)))[1]

    return uvloop.run(published())
