"""Ready-made batches over several connections, against the bare server and the same client."""

from __future__ import annotations

from benchmarks.broker.bare_server import bare_server
from benchmarks.harness.bench import Bench
from benchmarks.harness.child import Child, served
from benchmarks.harness.raw_client import publish_pipelined
from benchmarks.harness.rounds import compare
from benchmarks.harness.row import Row, ratio_at_least
from benchmarks.log.subject import ready_batch
from quiver import Client

_CONNECTIONS = 4
_MESSAGES = 100


def publish_ready_batches(bench: Bench) -> list[Row]:
    batches = [ready_batch(_MESSAGES, 1_000, seed) for seed in range(16)]
    count = bench.pick(2_000, 64)

    def rate(server: Child) -> float:
        seconds = publish_pipelined(
            server.address,
            "ready",
            batches,
            count,
            partitions=_CONNECTIONS,
            connections=_CONNECTIONS,
        )
        return count * _MESSAGES / seconds

    with bench.folder() as folder, served(folder) as node, bare_server(folder) as bare:
        with Client(node.url) as client:
            client.create_topic("ready", partitions=_CONNECTIONS, durability="fsync")
        compared = compare(bench.pick(7, 1), lambda: rate(node), lambda: rate(bare))
    return [
        Row(
            name=f"publish batches of {_MESSAGES} x 1 KB, fsync, {_CONNECTIONS} connections",
            value=compared.value,
            unit="msg/s",
            yardstick=compared.yardstick,
            yardstick_name="bare uvloop server",
            ratio=compared.ratio,
            target=ratio_at_least(0.6),
            note="8 batches unanswered on each connection, 4 partitions; the bare server checks a "
            "CRC-32C, appends to one file and syncs once for all who wait",
        )
    ]
