"""Publishing over HTTP: one message in a request, a hundred, and as Arrow."""

from __future__ import annotations

import json
from functools import partial

import pyarrow as pa
import uvloop

from benchmarks.harness.bench import Bench
from benchmarks.harness.child import Child, served
from benchmarks.harness.latency import latency_rows
from benchmarks.harness.rounds import compare, median_of
from benchmarks.harness.row import Row, at_least, ratio_at_least
from benchmarks.http.bare_starlette import bare_starlette
from benchmarks.http.load import at_rate, closed_loop, request
from quiver import Client
from quiver.edge.http.arrow import stream_of
from quiver.edge.http.operation import ARROW

_PATH = "/queues/posted/messages"
_CONNECTIONS = 64
_TEXT = "x" * 1000


def post_one_at_a_time(bench: Bench) -> list[Row]:
    data = request(_PATH, json.dumps({"message": _TEXT}).encode())
    count = bench.pick(20_000, 200)

    def rate(server: Child) -> float:
        return uvloop.run(closed_loop(server.http_address, data, count, _CONNECTIONS))

    with bench.folder() as folder, served(folder) as node, bare_starlette(folder) as bare:
        _create(node)
        compared = compare(bench.pick(5, 1), lambda: rate(node), lambda: rate(bare))
        half = max(50.0, compared.value / 2)
        steady = [
            uvloop.run(
                at_rate(
                    node.http_address, data, half, bench.pick(round(3 * half), 50), _CONNECTIONS
                )
            )
            for _ in range(bench.pick(3, 1))
        ]
    p99 = latency_rows(
        f"POST one 1 KB message, fsync, {_CONNECTIONS} connections, half the rate",
        steady,
        (20.0, 20.0),
    )[1]
    return [
        Row(
            name=f"POST one 1 KB message, fsync, {_CONNECTIONS} connections",
            value=compared.value,
            unit="req/s",
            yardstick=compared.yardstick,
            yardstick_name="bare Starlette",
            ratio=compared.ratio,
            target=ratio_at_least(0.4),
            note="the bare handler decodes the body with msgspec and answers; it stores nothing",
        ),
        p99,
    ]


def post_from_few(bench: Bench) -> list[Row]:
    """One request under way on each of a few connections."""
    data = request(_PATH, json.dumps({"message": _TEXT}).encode())
    with bench.folder() as folder, served(folder) as node:
        _create(node)

        rounds: dict[int, list[list[float]]] = {1: [], 32: []}

        def rate(connections: int) -> float:
            count = bench.pick(2_000 * min(connections, 5), 100)
            taken: list[float] = []
            rounds[connections].append(taken)
            return uvloop.run(closed_loop(node.http_address, data, count, connections, taken))

        rates = {number: median_of(bench.pick(3, 1), partial(rate, number)) for number in rounds}
    name = "POST one 1 KB message, fsync, "
    return [
        Row(name=f"{name}1 connection", value=rates[1], unit="req/s", target=at_least(1_200)),
        Row(name=f"{name}32 connections", value=rates[32], unit="req/s", target=at_least(8_000)),
        latency_rows(f"{name}32 connections", rounds[32], (15.0, 15.0))[1],
    ]


def post_batches(bench: Bench) -> list[Row]:
    data = request(_PATH, json.dumps([{"message": _TEXT}] * 100).encode())
    count = bench.pick(1000, 10)
    return [
        _row(bench, "POST 100 messages of 1 KB, fsync, 8 connections", data, count, 100, 150_000)
    ]


def post_arrow(bench: Bench) -> list[Row]:
    batch = pa.record_batch({"payload": pa.array([_TEXT.encode()] * 1000, pa.binary())})
    data = request(_PATH, stream_of(batch), ARROW)
    count = bench.pick(400, 5)
    return [
        _row(
            bench, "POST 1,000 messages as Arrow, fsync, 8 connections", data, count, 1000, 200_000
        )
    ]


def _row(bench: Bench, name: str, data: bytes, count: int, messages: int, target: float) -> Row:
    with bench.folder() as folder, served(folder) as node:
        _create(node)
        rate = median_of(
            bench.pick(3, 1), lambda: uvloop.run(closed_loop(node.http_address, data, count, 8))
        )
    return Row(name=name, value=rate * messages, unit="msg/s", target=at_least(target))


def _create(node: Child) -> None:
    with Client(node.url) as client:
        client.create_queue("posted", durability="fsync")
