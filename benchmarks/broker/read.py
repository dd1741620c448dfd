"""Reading what was published a moment ago, as record batches and message by message."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.harness.bench import Bench
from benchmarks.harness.child import served
from benchmarks.harness.raw_client import publish_pipelined
from benchmarks.harness.rounds import median_of
from benchmarks.harness.row import Row, at_least
from benchmarks.log.subject import ready_batch
from quiver import Client, Reader

_MESSAGES = 100


def read_a_topic(bench: Bench) -> list[Row]:
    batches = [ready_batch(_MESSAGES, 1_000, seed) for seed in range(16)]
    count = bench.pick(2_000, 32)
    rounds = bench.pick(5, 1)
    with bench.folder() as folder, served(folder) as node, Client(node.url) as client:
        client.create_topic("read", durability="fsync")
        publish_pipelined(node.address, "read", batches, count)

        def rate(read: Callable[[Reader], int]) -> float:
            began = time.perf_counter()
            with client.read("read") as reader:
                rows = read(reader)
            assert rows == count * _MESSAGES
            return rows / (time.perf_counter() - began)

        rate(_as_batches)
        as_batches = median_of(rounds, lambda: rate(_as_batches))
        as_messages = median_of(rounds, lambda: rate(_as_messages))
    of = f"{count * _MESSAGES:,} messages that were stored a moment ago, one partition"
    return [
        Row(
            name="read 1 KB messages as record batches",
            value=as_batches,
            unit="msg/s",
            target=at_least(500_000),
            note=of,
        ),
        Row(
            name="read 1 KB messages one by one",
            value=as_messages,
            unit="msg/s",
            target=at_least(200_000),
            note=f".messages(); {of}",
        ),
    ]


def _as_batches(reader: Reader) -> int:
    return sum(batch.num_rows for batch in reader)


def _as_messages(reader: Reader) -> int:
    return sum(1 for message in reader.messages() if message.payload)
