"""A publish to three replicas: one in flight, and at modest rates. Three brokers of Kafka that sync
take their turn after Quiver's nodes: six servers at a time are too many for small machines."""

from __future__ import annotations

import functools
import statistics

import msgspec
import uvloop

from benchmarks.cluster.stage import Stage, cluster_of
from benchmarks.harness.bench import Bench
from benchmarks.harness.latency import at_rate, latency_rows
from benchmarks.harness.row import Row, at_least, at_most
from benchmarks.one.kafka_brokers import Kafka, kafka_brokers, kafka_is_installed
from benchmarks.one.lone import peer_rows
from benchmarks.one.loops import Measured, repeated
from quiver import AsyncClient, Client

_PAYLOAD = bytes(1024)
_NAME = "publish 1 KB to three replicas, one in flight, acks=quorum, fsync"
_SYNCED = "Kafka, three brokers: produce 1 KB, acks=all, synced"
_UNSYNCED = "Kafka, three brokers: produce 1 KB, acks=all, not synced"


def publish_replicated(bench: Bench) -> list[Row]:
    with bench.folder() as folder:
        own, kafka = _quiver(bench, folder), _kafka(bench, folder)
    synced = kafka.get(_SYNCED, Series([], [], []))
    row = Row(
        name=_NAME,
        value=rate_of(own.lone),
        unit="/s",
        yardstick=rate_of(synced.lone) if synced.lone else None,
        yardstick_name=_SYNCED if synced.lone else "",
        ratio=rate_of(own.lone) / rate_of(synced.lone) if synced.lone else None,
        target=at_least(500),
        note="blocking client; three nodes, etcd and the client share the cores",
    )
    return [
        row,
        Row(
            name=f"{_NAME}: CPU of all nodes for each",
            value=statistics.median(one.cpu_us for one in own.lone),
            unit="µs",
            target=at_most(1_800),
        ),
        *latency_rows("the same at 200/s", own.slow, (3.5, 12.0), synced.slow, _SYNCED),
        *latency_rows(
            "the same at 1,000/s over 3 partitions", own.quick, (8.0, 30.0), synced.quick, _SYNCED
        ),
        *(row for name, seen in kafka.items() for row in peer_rows(name, seen.lone)),
    ]


def rate_of(rounds: list[Measured]) -> float:
    return statistics.median(one.rate for one in rounds)


class Series(msgspec.Struct, frozen=True):
    """What was measured of one system, a list of rounds each."""

    lone: list[Measured]
    slow: list[list[float]]
    quick: list[list[float]]


def _quiver(bench: Bench, folder: str) -> Series:
    seconds, rounds = bench.pick(20, 1) / 10, bench.pick(3, 1)
    with cluster_of(folder, 3) as stage:
        with Client(stage.url) as client:
            client.create_topic("one", replicas=3)
            client.create_topic("three", partitions=3, replicas=3)
        return Series(
            lone=[_lone(stage, seconds) for _ in range(rounds)],
            slow=[_at(stage, "one", 200, bench.pick(600, 40)) for _ in range(rounds)],
            quick=[_at(stage, "three", 1_000, bench.pick(3_000, 100)) for _ in range(rounds)],
        )


def _kafka(bench: Bench, folder: str) -> dict[str, Series]:
    """By name; none if it is not installed."""
    if not kafka_is_installed():
        print("kafka is not installed: rows left out (make bench-tools)")
        return {}
    with kafka_brokers(folder, 3) as kafka:
        return {
            name: _series(bench, kafka, synced=synced)
            for name, synced in ((_SYNCED, True), (_UNSYNCED, False))
        }


def _series(bench: Bench, kafka: Kafka, *, synced: bool) -> Series:
    seconds, rounds = bench.pick(20, 1) / 10, bench.pick(3, 1)
    one, three = f"one-{synced}", f"three-{synced}"
    kafka.create(one, 1, 3, synced=synced)
    kafka.create(three, 3, 3, synced=synced)
    with kafka.producer() as producer:

        def lone() -> Measured:
            return repeated(lambda: producer.publish(one, _PAYLOAD), seconds, kafka.cpu_seconds)

        async def at(topic: str, rate: int, count: int) -> list[float]:
            async with producer.polled():
                publish = functools.partial(producer.publish_soon, topic, _PAYLOAD)
                return (await at_rate(rate, count, lambda _: publish()))[1]

        for _ in range(bench.pick(3, 0)):  # until its code is compiled
            lone()
        return Series(
            lone=[lone() for _ in range(rounds)],
            slow=[uvloop.run(at(one, 200, bench.pick(600, 40))) for _ in range(rounds)],
            quick=[uvloop.run(at(three, 1_000, bench.pick(3_000, 100))) for _ in range(rounds)],
        )


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
