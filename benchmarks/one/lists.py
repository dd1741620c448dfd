"""Lists and small tables of a hundred messages, four under way, against the bare server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pyarrow as pa
import uvloop

from benchmarks.broker.bare_server import bare_server
from benchmarks.harness.bench import Bench
from benchmarks.harness.child import Child, served
from benchmarks.harness.raw_client import publish_pipelined
from benchmarks.harness.rounds import compare, median_of
from benchmarks.harness.row import Row, ratio_at_least
from benchmarks.log.subject import ready_batch
from quiver import AsyncClient, Client
from quiver.model.batch import UnstoredBatch

_MESSAGES, _AT_ONCE = 100, 4
_PAYLOADS = [bytes(1000)] * _MESSAGES
_TABLE = pa.record_batch({"payload": pa.array(_PAYLOADS, pa.binary())})
_NAME = f"1 KB messages, {{what}} of {_MESSAGES}, {_AT_ONCE} under way, fsync"

Publish = Callable[[AsyncClient], Awaitable[object]]


def publish_lists(bench: Bench) -> list[Row]:
    count, rounds = bench.pick(1_000, 20), bench.pick(5, 1)
    with bench.folder() as folder, served(folder) as node, bare_server(folder) as bare:
        with Client(node.url) as client:
            client.create_topic("listed", durability="fsync")
        batches = [ready_batch(_MESSAGES, 1_000, seed) for seed in range(16)]

        def rate(publish: Publish) -> float:
            return uvloop.run(_rate(node, publish, count))

        def bare_rate() -> float:
            return _bare_rate(bare, batches, count)

        lists = compare(
            rounds, lambda: rate(lambda one: one.publish_many("listed", _PAYLOADS)), bare_rate
        )
        tables = compare(
            rounds, lambda: rate(lambda one: one.publish_table("listed", _TABLE)), bare_rate
        )
        sent = median_of(rounds, lambda: _send_rate(node, count * _MESSAGES))
    rows = [
        Row(
            name=_NAME.format(what=what),
            value=compared.value,
            unit="msg/s",
            yardstick=compared.yardstick,
            yardstick_name="bare uvloop server",
            ratio=compared.ratio,
            target=ratio_at_least(0.45) if what == "publish_many lists" else None,
            note="one async client, one partition; the bare server gets ready-made batches over "
            f"{_AT_ONCE} connections",
        )
        for what, compared in (("publish_many lists", lists), ("publish_table tables", tables))
    ]
    return [*rows, Row(name="the same with send() one by one", value=sent, unit="msg/s")]


async def _rate(node: Child, publish: Publish, count: int) -> float:
    async with AsyncClient(node.url) as client:
        await publish(client)
        left = iter(range(count))

        async def work() -> None:
            for _ in left:
                await publish(client)

        began = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
        return count * _MESSAGES / (time.perf_counter() - began)


def _bare_rate(bare: Child, batches: list[UnstoredBatch], count: int) -> float:
    seconds = publish_pipelined(
        bare.address, "listed", batches, count, partitions=_AT_ONCE, connections=_AT_ONCE
    )
    return count * _MESSAGES / seconds


def _send_rate(node: Child, count: int) -> float:
    with Client(node.url) as client:
        began = time.perf_counter()
        with client.producer("listed") as producer:
            for _ in range(count):
                producer.send(_PAYLOADS[0])
        return count / (time.perf_counter() - began)
