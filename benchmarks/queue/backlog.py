"""A million messages that nobody has received yet: what they cost in time, and in memory."""

from __future__ import annotations

import asyncio
import random
import time

import pyarrow as pa
import uvloop

from benchmarks.harness.bench import Bench
from benchmarks.harness.child import Child, served
from benchmarks.harness.raw_client import publish_pipelined
from benchmarks.harness.rounds import compare
from benchmarks.harness.row import Row, at_most, ratio_at_least
from benchmarks.log.subject import ready_batch
from quiver import AsyncClient
from quiver.model.batch import UnstoredBatch
from quiver.model.builder import encode_record_batch
from quiver.protocol import SubscriptionInfo

_BATCH = 500
"""How many messages are published together, in every queue here: receiving depends on it."""
_SHALLOW = 2 * _BATCH
_RECEIVE = 50
_RECEIVED = _BATCH
"""Received of the shallow queue, and put into it again, each time: half of what is in it."""
_DELAY_S_MAX = 3_600
_SECONDS_MAX = 60.0
_SETTLE_S = 2.0


def hold_a_million(bench: Bench) -> list[Row]:
    pending = bench.pick(1_000_000, 20_000)
    return [_receive_rate(bench, pending), _memory(bench, pending)]


def _receive_rate(bench: Bench, pending: int) -> Row:
    plain = [ready_batch(_BATCH, 1_000, seed) for seed in range(4)]
    topping_up = [ready_batch(_BATCH, 1_000)]
    repeats = bench.pick(5, 1)

    def rate(node: Child, queue: str) -> float:
        seconds = 0.0
        for _ in range(repeats):
            seconds += uvloop.run(_receive(node, queue))
            _fill(node, queue, topping_up, 1)
        return repeats * (_RECEIVED - _RECEIVE) / seconds

    with bench.folder() as folder, served(folder) as node:
        for queue, messages in (("deep", pending), ("shallow", _SHALLOW)):
            uvloop.run(_create(node, queue))
            _fill(node, queue, plain, messages // _BATCH)
        compared = compare(
            bench.pick(7, 1), lambda: rate(node, "deep"), lambda: rate(node, "shallow")
        )
        counts = _counts(uvloop.run(_look(node, "deep")))
    return Row(
        name=f"receive {_RECEIVE} x 1 KB with {pending:,} pending",
        value=compared.value,
        unit="msg/s",
        yardstick=compared.yardstick,
        yardstick_name=f"{_SHALLOW:,} pending",
        ratio=compared.ratio,
        target=ratio_at_least(0.9),
        note=f"one consumer; acks are not in the time; in the end {counts}",
    )


def _memory(bench: Bench, pending: int) -> Row:
    rng = random.Random(7)
    mixed = [_mixed_batch(rng, _BATCH) for _ in range(16)]
    with bench.folder() as folder, served(folder) as node:
        uvloop.run(_create(node, "mixed"))
        time.sleep(bench.pick(1, 0))
        empty = node.memory_mb("RssAnon")
        _fill(node, "mixed", mixed, pending // _BATCH)
        stored = node.memory_mb("RssAnon")
        counts = _counts(uvloop.run(_look(node, "mixed")))
        time.sleep(bench.pick(1, 0) * _SETTLE_S)
        full = node.memory_mb("RssAnon")
    return Row(
        name=f"memory for {pending:,} pending messages",
        value=full - empty,
        unit="MB",
        target=at_most(60),
        note=f"RssAnon; 1 KB, random priorities, half of them delayed; {empty:.0f} MB when empty, "
        f"{stored:.0f} MB when stored, {full:.0f} MB in the end: {counts}",
    )


def _fill(node: Child, queue: str, batches: list[UnstoredBatch], count: int) -> None:
    """Few batches at a time: a node looks ahead at what is published only while it is in memory."""
    publish_pipelined(node.address, queue, batches, count, connections=1, outstanding=4)


def _counts(info: SubscriptionInfo) -> str:
    return f"{info.ready:,} ready, {info.delayed:,} delayed, {info.unseen:,} not looked at"


def _mixed_batch(rng: random.Random, messages: int) -> UnstoredBatch:
    now_us = time.time_ns() // 1_000
    delays_s = [rng.choice((None, 600 + rng.random() * _DELAY_S_MAX)) for _ in range(messages)]
    deliver_at = [None if s is None else now_us + round(s * 1_000_000) for s in delays_s]
    return encode_record_batch(
        pa.record_batch(
            {
                "payload": pa.array([rng.randbytes(1_000) for _ in range(messages)], pa.binary()),
                "priority": pa.array([rng.randrange(10) for _ in range(messages)], pa.int8()),
                "deliver_at": pa.array(deliver_at, pa.int64()).cast(pa.timestamp("us", "UTC")),
            }
        )
    )


async def _create(node: Child, queue: str) -> None:
    """A queue that has been asked for messages: from then on it knows what is published to it."""
    async with AsyncClient(node.url) as client:
        await client.create_queue(queue, durability="fsync", visibility="10m")
        assert not await client.receive(queue, 1)


async def _receive(node: Child, queue: str) -> float:
    """The seconds that receiving took, in all but the first time, which connects."""
    seconds: list[float] = []
    received = 0
    async with asyncio.timeout(_SECONDS_MAX), AsyncClient(node.url) as client:
        while received < _RECEIVED:
            began = time.perf_counter()
            messages = await client.receive(queue, _RECEIVE)
            seconds.append(time.perf_counter() - began)
            assert len(messages) == _RECEIVE, "there are more than enough"
            received += len(messages)
            await client.ack(queue, messages)
    return sum(seconds[1:])


async def _look(node: Child, queue: str) -> SubscriptionInfo:
    """How the queue is after one more message was taken."""
    async with asyncio.timeout(_SECONDS_MAX), AsyncClient(node.url) as client:
        await client.ack(queue, await client.receive(queue, 1))
        return await client.describe_subscription(queue)
