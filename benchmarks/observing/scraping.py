"""``/metrics`` of a node with very many queues, and publishing while somebody looks every second."""

from __future__ import annotations

import statistics
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import uvloop

from benchmarks.harness.bench import Bench
from benchmarks.harness.child import Child, served
from benchmarks.harness.raw_client import publish_pipelined
from benchmarks.harness.rounds import compare
from benchmarks.harness.row import Row, at_most, ratio_at_least
from benchmarks.log.subject import ready_batch
from quiver import AsyncClient, Client

_MESSAGES = 100
_FRESH_S = 2.1
"""After so long the node makes everything anew: the sample, and the text of it."""
_SCRAPE_S = 1.0
_UNWATCHED = ("--set", "alerts.enabled=false")


def scrape_many_topics(bench: Bench) -> list[Row]:
    queues = bench.pick(1_000, 5)
    with bench.folder() as folder, served(folder, *_UNWATCHED) as node:
        uvloop.run(_use(node, queues))
        times, size = [], 0
        for _ in range(bench.pick(5, 1)):
            time.sleep(_FRESH_S)
            began = time.perf_counter()
            size = _scrape(node)
            times.append(1000 * (time.perf_counter() - began))
    return [
        Row(
            name=f"scrape /metrics with {queues:,} queues",
            value=statistics.median(times),
            unit="ms",
            target=at_most(200),
            note=f"median of {len(times)}, none of them from what was kept; each queue was "
            f"published to and received from; {size:,} bytes",
        )
    ]


def watch_while_publishing(bench: Bench) -> list[Row]:
    """Both nodes count; one is also looked at every second, and judges its alerts."""
    batches = [ready_batch(_MESSAGES, 1_000, seed) for seed in range(16)]
    count = bench.pick(4_000, 64)

    def rate(node: Child) -> float:
        return count * _MESSAGES / publish_pipelined(node.address, "ready", batches, count)

    def watched_rate(node: Child) -> float:
        with _scraped(node):
            return rate(node)

    with (
        bench.folder() as folder,
        bench.folder() as other,
        served(folder) as watched,
        served(other, *_UNWATCHED) as unwatched,
    ):
        for node in (watched, unwatched):
            uvloop.run(_use(node, bench.pick(100, 5)))
            with Client(node.url) as client:
                client.create_topic("ready", durability="fsync")
        compared = compare(bench.pick(7, 1), lambda: watched_rate(watched), lambda: rate(unwatched))
    return [
        Row(
            name=f"publish batches of {_MESSAGES} x 1 KB while watched",
            value=compared.value,
            unit="msg/s",
            yardstick=compared.yardstick,
            yardstick_name="nobody looks, no alerts",
            ratio=compared.ratio,
            target=ratio_at_least(0.97),
            note=f"100 other queues; a scrape every {_SCRAPE_S:g} s, alerts every second",
        )
    ]


async def _use(node: Child, queues: int) -> None:
    """So many queues of which every figure has something to show."""
    async with AsyncClient(node.url) as client:
        for number in range(queues):
            name = f"queue-{number}"
            await client.create_queue(name, durability="os")
            await client.publish(name, number)
            await client.ack(name, await client.receive(name))


def _scrape(node: Child) -> int:
    """How many bytes it was."""
    host, port = node.http_address
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=60) as reply:
        return len(reply.read())


@contextmanager
def _scraped(node: Child) -> Iterator[None]:
    """Somebody scrapes the node for as long as the block runs."""
    over = threading.Event()

    def scrape() -> None:
        while not over.is_set():
            _scrape(node)
            over.wait(_SCRAPE_S)

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
