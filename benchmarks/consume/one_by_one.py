"""A worker's loop: one client that consumes a queue and acknowledges each message by itself."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from benchmarks.consume.peers import Peers, peers
from benchmarks.consume.queue import Queue
from benchmarks.consume.quiver_queue import AsyncQuiverQueue, QuiverQueue
from benchmarks.consume.rabbitmq_queue import RabbitQueue
from benchmarks.consume.rate import Consumed, consumed
from benchmarks.consume.redis_queue import RedisQueue
from benchmarks.harness.bench import Bench
from benchmarks.harness.child import Child, served
from benchmarks.harness.rounds import in_turn
from benchmarks.harness.row import Row, at_least, at_most, ratio_at_least

_SECONDS_MAX = 3.0
_NAME = "consume and ack 1 KB one by one, {client}, fsync"
_BLOCKING = "blocking client"
_CLIENTS = {_BLOCKING: QuiverQueue, "async client": AsyncQuiverQueue}
_RABBITMQ = "RabbitMQ quorum queue, acks one by one"
_RABBITMQ_100 = "RabbitMQ quorum queue, an ack for a hundred"
_REDIS = "Redis Streams always, XACK one by one"
_REDIS_100 = "Redis Streams always, XACK of a hundred"
_HOW = {"RabbitMQ": "pika with a prefetch of 1,000", "Redis": "redis-py, XREADGROUP of a hundred"}
_TARGETS = {_RABBITMQ: ratio_at_least(2.5)}

Measure = Callable[[str], Consumed]
"""Fills a queue of this name and consumes it."""


def consume_one_by_one(bench: Bench) -> list[Row]:
    with bench.folder() as folder, served(folder) as node, peers(folder) as others:
        consumed(QuiverQueue(node, "warm-up"), bench.pick(5_000, 100), 1.0)
        contestants = _clients(node, bench.pick(150_000, 500))
        contestants |= _peers(others, bench.pick(50_000, 500))
        rounds: dict[str, list[Consumed]] = {name: [] for name in contestants}
        for turn in range(bench.pick(3, 1)):
            for name in in_turn(contestants, turn):
                queue = f"queue-{turn}-{list(contestants).index(name)}"
                rounds[name].append(contestants[name](queue))
    own = {name: rounds.pop(name) for name in _CLIENTS}
    return [
        *(row for name, results in own.items() for row in _own_rows(name, results)),
        *_beside_rows(own[_BLOCKING], rounds),
    ]


def _clients(node: Child, messages: int) -> dict[str, Measure]:
    def measure(kind: type[QuiverQueue]) -> Measure:
        return lambda name: consumed(kind(node, name), messages, _SECONDS_MAX, node.cpu_seconds)

    return {client: measure(kind) for client, kind in _CLIENTS.items()}


def _peers(others: Peers, messages: int) -> dict[str, Measure]:
    def measure(make: Callable[[str], Queue]) -> Measure:
        return lambda name: consumed(make(name), messages, _SECONDS_MAX)

    found: dict[str, Measure] = {}
    rabbitmq, redis = others.rabbitmq, others.redis
    if rabbitmq is not None:
        found[_RABBITMQ] = measure(lambda name: RabbitQueue(rabbitmq, name))
        found[_RABBITMQ_100] = measure(lambda name: RabbitQueue(rabbitmq, name, ack_every=100))
    if redis is not None:
        found[_REDIS] = measure(lambda name: RedisQueue(redis, name))
        found[_REDIS_100] = measure(lambda name: RedisQueue(redis, name, acks_together=True))
    return found


def _own_rows(client: str, rounds: list[Consumed]) -> list[Row]:
    name = _NAME.format(client=client)
    return [
        Row(
            name=name,
            value=statistics.median(one.rate for one in rounds),
            unit="msg/s",
            target=at_least(60_000),
            note=f"until the client is closed and all acks are stored; up to {_SECONDS_MAX:g} s of a "
            "full queue of one partition, default prefetch",
        ),
        Row(
            name=f"{name}: node CPU for each message",
            value=statistics.median(one.cpu_us for one in rounds),
            unit="µs",
            target=at_most(8),
        ),
    ]


def _beside_rows(own: list[Consumed], theirs: dict[str, list[Consumed]]) -> list[Row]:
    return [
        Row(
            name=_NAME.format(client=_BLOCKING),
            value=statistics.median(one.rate for one in own),
            unit="msg/s",
            yardstick=statistics.median(one.rate for one in rounds),
            yardstick_name=peer,
            ratio=statistics.median(
                one.rate / other.rate for one, other in zip(own, rounds, strict=True)
            ),
            target=_TARGETS.get(peer),
            note=f"{peer}: {_HOW[peer.split()[0]]}, blocking",
        )
        for peer, rounds in theirs.items()
    ]
