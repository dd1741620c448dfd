"""A read of a topic without transactions, against one that does not look for any."""

from __future__ import annotations

import time

from benchmarks.harness.bench import Bench
from benchmarks.harness.child import served
from benchmarks.harness.raw_client import publish_pipelined
from benchmarks.harness.rounds import compare
from benchmarks.harness.row import Row, ratio_at_least
from benchmarks.log.subject import ready_batch
from quiver import Client

_MESSAGES = 100
_NO_SLOWER = 0.97
"""What two measurements of the same thing differ by, in the median of the rounds."""


def read_without_transactions(bench: Bench) -> list[Row]:
    batches = [ready_batch(_MESSAGES, 1_000, seed) for seed in range(16)]
    count = bench.pick(500, 32)
    with bench.folder() as folder, served(folder) as node, Client(node.url) as client:
        client.create_topic("read", durability="fsync")
        publish_pipelined(node.address, "read", batches, count)

        def rate(isolation: str) -> float:
            began = time.perf_counter()
            with client.read("read", isolation=isolation) as reader:
                rows = sum(batch.num_rows for batch in reader)
            assert rows == count * _MESSAGES
            return rows / (time.perf_counter() - began)

        compared = compare(
            bench.pick(61, 1), lambda: rate("committed"), lambda: rate("uncommitted")
        )
    return [
        Row(
            name="read a topic without transactions",
            value=compared.value,
            unit="msg/s",
            yardstick=compared.yardstick,
            yardstick_name="the log as it is: isolation='uncommitted'",
            ratio=compared.ratio,
            target=ratio_at_least(_NO_SLOWER),
            note=f"{count * _MESSAGES:,} messages of 1 KB as record batches, one partition",
        )
    ]
