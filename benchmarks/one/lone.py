"""One request in flight: publishes, and receives with their acks. Redis and Kafka take turns with
Quiver."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import uvloop

from benchmarks.broker.redis_streams import redis_is_installed, redis_streams
from benchmarks.harness.bench import Bench
from benchmarks.harness.child import Child, served
from benchmarks.harness.rounds import in_turn
from benchmarks.harness.row import Row, Target, at_least, at_most, ratio_at_least
from benchmarks.one.kafka_brokers import kafka_brokers, kafka_is_installed
from benchmarks.one.loops import Measured, repeated, repeated_async
from quiver import AsyncClient, Client

_PAYLOAD = bytes(1024)
_BACKLOG = 20_000
_MANY = 64
_GROUP = "workers"

_BLOCKING, _ASYNC = "publish 1 KB, blocking client", "publish 1 KB, async client"
_UNSYNCED = "publish 1 KB without sync, blocking client"
_RECEIVED = "receive one and ack it, blocking client"
_CROWD = f"publish 1 KB, async client, {_MANY} in flight"
_REDIS, _REDIS_OS = "Redis XADD, appendfsync always", "Redis XADD, appendfsync everysec"
_REDIS_READ = "Redis XREADGROUP and XACK, appendfsync always"
_KAFKA = "Kafka, one broker: produce 1 KB, synced"
_KAFKA_OS = "Kafka, one broker: produce 1 KB, not synced"
_BESIDE = {
    _BLOCKING: (_REDIS, ratio_at_least(0.75)),
    _ASYNC: (_REDIS, ratio_at_least(0.9)),
    _UNSYNCED: (_REDIS_OS, None),
    _RECEIVED: (_REDIS_READ, ratio_at_least(1.0)),
    _CROWD: (None, at_least(35_000)),
}
_CPU_TARGETS = {_BLOCKING: at_most(250)}

Measure = Callable[[], Measured]


def ask_one_at_a_time(bench: Bench) -> list[Row]:
    seconds = bench.pick(20, 1) / 10
    with (
        bench.folder() as folder,
        served(folder) as node,
        _redis(folder) as redis,
        _kafka(folder, seconds) as kafka,
    ):
        contestants = _quiver(node, seconds, bench.pick(_BACKLOG, 1_000))
        contestants |= {name: _redis_measure(redis, name, seconds) for name in redis}
        contestants |= kafka
        rounds: dict[str, list[Measured]] = {name: [] for name in contestants}
        for turn in range(bench.pick(3, 1)):
            for name in in_turn(contestants, turn):
                rounds[name].append(contestants[name]())
    rows = [row for name in _BESIDE for row in _rows(name, rounds)]
    return rows + [row for name in kafka for row in peer_rows(name, rounds[name])]


def _rows(name: str, rounds: dict[str, list[Measured]]) -> Iterator[Row]:
    peer, target = _BESIDE[name]
    own = rounds[name]
    rate = statistics.median(one.rate for one in own)
    if peer is None or peer not in rounds:
        yield Row(name=name, value=rate, unit="/s", target=None if peer else target)
    else:
        yield _beside(name, own, peer, rounds[peer], target)
    yield Row(
        name=f"{name}: node CPU for each",
        value=statistics.median(one.cpu_us for one in own),
        unit="µs",
        target=_CPU_TARGETS.get(name),
    )


def peer_rows(name: str, rounds: list[Measured]) -> list[Row]:
    """What a peer did, for the eye: there is no target for it."""
    rate = statistics.median(one.rate for one in rounds)
    cpu_us = statistics.median(one.cpu_us for one in rounds)
    return [
        Row(name=name, value=rate, unit="/s", note="one in flight; confluent-kafka"),
        Row(name=f"{name}: CPU of all brokers for each", value=cpu_us, unit="µs"),
    ]


def _beside(
    name: str, own: list[Measured], peer: str, theirs: list[Measured], target: Target | None
) -> Row:
    return Row(
        name=name,
        value=statistics.median(one.rate for one in own),
        unit="/s",
        yardstick=statistics.median(one.rate for one in theirs),
        yardstick_name=peer,
        ratio=statistics.median(
            one.rate / other.rate for one, other in zip(own, theirs, strict=True)
        ),
        target=target,
        note="one in flight; redis-py with one connection",
    )


def _quiver(node: Child, seconds: float, backlog: int) -> dict[str, Measure]:
    with Client(node.url) as client:
        client.create_topic("synced", durability="fsync")
        client.create_topic("unsynced", durability="os")
        client.create_queue("queue", durability="fsync")

    def publish(topic: str) -> Measured:
        with Client(node.url) as client:
            return repeated(lambda: client.publish(topic, _PAYLOAD), seconds, node.cpu_seconds)

    def receive() -> Measured:
        with Client(node.url) as client:
            client.purge("queue")
            client.publish_many("queue", [_PAYLOAD] * backlog)
            return repeated(
                lambda: client.ack("queue", client.receive("queue", 1)), seconds, node.cpu_seconds
            )

    async def publish_async(at_once: int) -> Measured:
        async with AsyncClient(node.url) as client:
            return await repeated_async(
                lambda: client.publish("synced", _PAYLOAD), seconds, node.cpu_seconds, at_once
            )

    return {
        _BLOCKING: lambda: publish("synced"),
        _ASYNC: lambda: uvloop.run(publish_async(1)),
        _UNSYNCED: lambda: publish("unsynced"),
        _RECEIVED: receive,
        _CROWD: lambda: uvloop.run(publish_async(_MANY)),
    }


@contextmanager
def _redis(folder: str) -> Iterator[dict[str, int]]:
    """The ports of Redis servers by what they are measured with; none if it is not installed."""
    with ExitStack() as stack:
        if not redis_is_installed():
            print("redis is not installed: rows left out (make bench-tools)")
            yield {}
            return
        always = stack.enter_context(redis_streams(folder, "always")).port
        everysec = stack.enter_context(redis_streams(folder, "everysec")).port
        yield {_REDIS: always, _REDIS_OS: everysec, _REDIS_READ: always}


@contextmanager
def _kafka(folder: str, seconds: float) -> Iterator[dict[str, Measure]]:
    """Measures of one broker, once its code is compiled; none if it is not installed."""
    if not kafka_is_installed():
        print("kafka is not installed: rows left out (make bench-tools)")
        yield {}
        return
    with kafka_brokers(folder, 1) as kafka, kafka.producer() as producer:
        kafka.create("synced", 1, 1, synced=True)
        kafka.create("unsynced", 1, 1, synced=False)

        def measure(topic: str) -> Measured:
            return repeated(lambda: producer.publish(topic, _PAYLOAD), seconds, kafka.cpu_seconds)

        measure("unsynced")
        yield {_KAFKA: lambda: measure("synced"), _KAFKA_OS: lambda: measure("unsynced")}


def _redis_measure(ports: dict[str, int], name: str, seconds: float) -> Measure:
    import redis

    def measure() -> Measured:
        with redis.Redis(host="127.0.0.1", port=ports[name]) as connection:
            connection.delete(name)
            if name != _REDIS_READ:
                return repeated(lambda: connection.xadd(name, {"payload": _PAYLOAD}), seconds)
            _fill(connection, name)
            return repeated(lambda: _read_one(connection, name), seconds)

    return measure


def _fill(connection: Any, name: str) -> None:
    connection.xgroup_create(name, _GROUP, "0", mkstream=True)
    for _ in range(_BACKLOG // 1_000):
        pipeline = connection.pipeline(transaction=False)
        for _ in range(1_000):
            pipeline.xadd(name, {"payload": _PAYLOAD})
        pipeline.execute()


def _read_one(connection: Any, name: str) -> None:
    ((_, ((number, _),)),) = connection.xreadgroup(_GROUP, "worker", {name: ">"}, count=1)
    connection.xack(name, _GROUP, number)
