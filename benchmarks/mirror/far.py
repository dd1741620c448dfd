"""A mirror of a topic that is far away: how much of the link it uses."""

from __future__ import annotations

import time

from tests.chaos.proxy import DelayProxy

from benchmarks.harness.bench import Bench
from benchmarks.harness.row import Row, at_least
from benchmarks.mirror.stage import MESSAGES, TOPIC, two_nodes, wait

_BYTES_PER_S = 16e6
_ROUND_TRIP_S = 0.1


def copy_over_a_far_link(bench: Bench) -> list[Row]:
    batches = bench.pick(1_000, 32)
    with two_nodes(bench) as stage:
        end = stage.publish(batches)
        before = stage.there.describe_topic(TOPIC).partitions[0].bytes
        link = DelayProxy(
            "127.0.0.1", stage.source.address, delay_s=_ROUND_TRIP_S / 2, rate=_BYTES_PER_S
        )
        try:
            stage.here.create_mirror("far", f"quiver://{link.address}", TOPIC, compression="none")
            wait(lambda: stage.copied(TOPIC) > 0)
            began, first = time.perf_counter(), stage.copied(TOPIC)
            wait(lambda: stage.copied(TOPIC) == end)
            seconds = time.perf_counter() - began
        finally:
            link.close()
    copied = before * (end - first) / end
    return [
        Row(
            name="a mirror's share of a link of 16 MB/s with a round trip of 100 ms",
            value=copied / seconds / _BYTES_PER_S,
            unit="of it",
            target=at_least(0.7),
            note=f"{batches * MESSAGES:,} messages of 1 KB, one partition, not compressed; a proxy "
            "delays every byte",
        )
    ]
