"""How fast more nodes are together, over the native protocol and behind as many forwarders."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import ExitStack

import uvloop

from benchmarks.cluster.replication import send
from benchmarks.cluster.stage import cluster_of
from benchmarks.harness.bench import Bench
from benchmarks.harness.child import Child, served
from benchmarks.harness.row import Row
from benchmarks.http.load import closed_loop, request
from quiver import Client

_NODES = (1, 2, 3)
_IN_A_POST = 100
_CONNECTIONS = 16


def publish_to_more_nodes(bench: Bench) -> list[Row]:
    rows = []
    for nodes in _NODES[: bench.pick(len(_NODES), 1)]:
        rows += _measured(bench, nodes)
    return rows


def _measured(bench: Bench, nodes: int) -> list[Row]:
    count, posts = bench.pick(60_000, 500), bench.pick(300, 5)
    with ExitStack() as stack:
        folder = stack.enter_context(bench.folder())
        stage = stack.enter_context(cluster_of(folder, nodes))
        client = stack.enter_context(Client(stage.url))
        client.create_topic("sent", partitions=2 * nodes, replicas=1)
        send(client, count // 10)
        everybody = list(stage.nodes.values())
        native, native_cpu = _cpu(everybody, count, lambda: send(client, count))
        flags = ("--role", "forwarder", "--upstream", stage.url)
        forwarders = [
            stack.enter_context(served(stack.enter_context(bench.folder()), *flags))
            for _ in range(nodes)
        ]
        body = json.dumps([{"message": "x" * 1000}] * _IN_A_POST).encode()
        data = request("/topics/sent/messages", body)
        total = posts * nodes
        posted, posted_cpu = _cpu(
            [*everybody, *forwarders],
            total * _IN_A_POST,
            lambda: _IN_A_POST * uvloop.run(_post(forwarders, data, posts)),
        )
    limit = "the cores are shared with etcd and with the one process that sends"
    return [
        Row(
            name=f"nodes: {nodes}; send 1 KB one by one, one replica, fsync",
            value=native,
            unit="msg/s",
            note=f"{native_cpu:.1f} µs of the nodes' CPU for each message; {limit}",
        ),
        Row(
            name=f"nodes and forwarders: {nodes}; POST {_IN_A_POST} messages of 1 KB, one replica, fsync",
            value=posted,
            unit="msg/s",
            note=f"{posted_cpu:.1f} µs of nodes' and forwarders' CPU for each message; {limit}",
        ),
    ]


def _cpu(children: list[Child], messages: int, measure: Callable[[], float]) -> tuple[float, float]:
    """What is measured, and microseconds of the children's CPU for each message meanwhile."""
    before = sum(child.cpu_seconds() for child in children)
    rate = measure()
    return rate, (sum(child.cpu_seconds() for child in children) - before) / messages * 1e6


async def _post(forwarders: list[Child], data: bytes, posts: int) -> float:
    """Requests in a second, to all forwarders at once."""
    began = time.perf_counter()
    await asyncio.gather(
        *(closed_loop(one.http_address, data, posts, _CONNECTIONS) for one in forwarders)
    )
    return posts * len(forwarders) / (time.perf_counter() - began)
