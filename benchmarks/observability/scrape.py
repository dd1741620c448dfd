"""``/metrics`` of a node with very many queues, and publishing while somebody looks every second."""

from __future__ import annotations

import statistics
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import uvloop
from websockets.sync.client import connect
from websockets.typing import Subprotocol

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
_CONSOLE = Subprotocol("quiver.console.v1")
_QUEUES = 100
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
    """Both nodes count; one is also scraped every second, shown in a console, and judges its alerts."""
    batches = [ready_batch(_MESSAGES, 1_000, seed) for seed in range(16)]
    count = bench.pick(4_000, 64)

    def rate(node: Child) -> float:
        return count * _MESSAGES / publish_pipelined(node.address, "ready", batches, count)

    def watched_rate(node: Child) -> float:
        with watched(node):
            return rate(node)

    with (
        bench.folder() as folder,
        bench.folder() as other,
        served(folder) as seen,
        served(other, *_UNWATCHED) as unseen,
    ):
        for node in (seen, unseen):
            uvloop.run(_use(node, bench.pick(_QUEUES, 5)))
            with Client(node.url) as client:
                client.create_topic("ready", durability="fsync")
        compared = compare(bench.pick(7, 1), lambda: watched_rate(seen), lambda: rate(unseen))
        share = _share_of_a_core(seen, bench.pick(10, 1))
    note = f"{_QUEUES} other queues; a scrape every {_SCRAPE_S:g} s, an open console, alerts"
    return [
        Row(
            name=f"publish batches of {_MESSAGES} x 1 KB while watched",
            value=compared.value,
            unit="msg/s",
            yardstick=compared.yardstick,
            yardstick_name="nobody looks, no alerts",
            ratio=compared.ratio,
            target=ratio_at_least(0.97),
            note=note,
        ),
        Row(
            name="what watching takes of a core",
            value=100 * share,
            unit="%",
            target=at_most(3),
            note=f"{note}; processor time of a node that does nothing else, which other work on the "
            "machine does not lengthen",
        ),
    ]


def _share_of_a_core(node: Child, seconds: int) -> float:
    with watched(node):
        began, before = time.monotonic(), node.cpu_seconds()
        time.sleep(seconds)
        return (node.cpu_seconds() - before) / (time.monotonic() - began)


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
def watched(node: Child) -> Iterator[None]:
    """Somebody scrapes the node, and somebody has its console open, while the block runs."""
    over = threading.Event()
    watchers = [threading.Thread(target=watch, args=(node, over)) for watch in (_scrapes, _looks)]
    for watcher in watchers:
        watcher.start()
    try:
        yield
    finally:
        over.set()
        for watcher in watchers:
            watcher.join()


def _scrapes(node: Child, over: threading.Event) -> None:
    while not over.is_set():
        _scrape(node)
        over.wait(_SCRAPE_S)


def _looks(node: Child, over: threading.Event) -> None:
    host, port = node.http_address
    with connect(f"ws://{host}:{port}/console/live", subprotocols=[_CONSOLE]) as console:
        while not over.is_set():
            with suppress(TimeoutError):
                console.recv(timeout=0.1)
