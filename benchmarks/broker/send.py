"""Message by message from one process, against Redis Streams where Redis is installed."""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack

from benchmarks.broker.redis_streams import RedisStreams, redis_is_installed, redis_streams
from benchmarks.harness.bench import Bench
from benchmarks.harness.child import served
from benchmarks.harness.machine import fdatasync_seconds
from benchmarks.harness.row import Row, at_least
from quiver import Client

_TARGET = 120_000
_PAYLOAD = bytes(range(250)) * 4
_FSYNC = ("always", "everysec")


def send_one_by_one(bench: Bench) -> list[Row]:
    count, redis_count = bench.pick(300_000, 2_000), bench.pick(60_000, 2_000)
    rates: list[float] = []
    redis_rates: dict[str, list[float]] = {}
    syncs = []
    with ExitStack() as stack:
        folder = stack.enter_context(bench.folder())
        node = stack.enter_context(served(folder))
        servers: dict[str, RedisStreams] = {}
        if redis_is_installed():
            servers = {how: stack.enter_context(redis_streams(folder, how)) for how in _FSYNC}
        else:
            print(
                "redis is not installed: row left out "
                "(apt-get install redis-server; pip install redis)"
            )
        client = stack.enter_context(Client(node.url))
        client.create_topic("sent", durability="fsync")
        _send(client, count // 10)
        for server in servers.values():
            server.add(_PAYLOAD, 1)
        for _ in range(bench.pick(3, 1)):
            rates.append(count / _send(client, count))
            for how, server in servers.items():
                redis_rates.setdefault(how, []).append(server.add(_PAYLOAD, redis_count))
            syncs.append(fdatasync_seconds(folder, bench.pick(100, 10)))
    note = f"4 KB fdatasync {1000 * statistics.median(syncs):.3f} ms between the rounds"
    name = "send 1 KB one by one, one process, fsync"
    rows = [
        _row(name, rates, redis_rates.get(how), f"Redis XADD, appendfsync {how}") for how in _FSYNC
    ]
    first = Row(
        name=name,
        value=rows[0].value,
        unit="msg/s",
        target=at_least(_TARGET),
        note=f"producer.send() and a flush at the end; {note}",
    )
    return [first, *(row for row in rows if row.yardstick is not None)]


def _row(name: str, rates: list[float], others: list[float] | None, other_name: str) -> Row:
    if others is None:
        return Row(name=name, value=statistics.median(rates), unit="msg/s")
    return Row(
        name=name,
        value=statistics.median(rates),
        unit="msg/s",
        yardstick=statistics.median(others),
        yardstick_name=other_name,
        ratio=statistics.median(rate / other for rate, other in zip(rates, others, strict=True)),
        note=f"{other_name}: redis-py in one process, 1,000 in a pipeline, one after the other",
    )


def _send(client: Client, count: int) -> float:
    """The seconds until all were stored."""
    with client.producer("sent") as producer:
        began = time.perf_counter()
        for _ in range(count):
            producer.send(_PAYLOAD)
        producer.flush()
        return time.perf_counter() - began
