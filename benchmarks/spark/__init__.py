"""Spark on a node's topics: reading, writing and archiving, beside Spark's own Parquet."""

from __future__ import annotations

from benchmarks.harness.bench import Bench
from benchmarks.harness.row import Row
from benchmarks.spark.archive import archive_a_topic
from benchmarks.spark.read import read_batches, read_streams
from benchmarks.spark.small_batches import smallest_micro_batch
from benchmarks.spark.stage import staged
from benchmarks.spark.write import write_a_stream


def spark_on_a_topic(bench: Bench) -> list[Row]:
    """All of them on the same topics and in one session, which take long to make."""
    rows = []
    counts = bench.pick(2_000_000, 2_000), bench.pick(1_000_000, 2_000)
    with staged(bench, *counts) as stage:
        for part in (
            read_batches,
            read_streams,
            write_a_stream,
            archive_a_topic,
            smallest_micro_batch,
        ):
            rows += part(bench, stage)
    return rows


BENCHMARKS = (spark_on_a_topic,)
