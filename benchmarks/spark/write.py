"""A stream from one topic into another, exactly once."""

from __future__ import annotations

from benchmarks.harness.bench import Bench
from benchmarks.harness.row import Row, at_least
from benchmarks.spark.stage import PARTITIONS, Stage
from quiver import Client


def write_a_stream(bench: Bench, stage: Stage) -> list[Row]:
    per_batch = bench.pick(250_000, 1_000)
    with Client(stage.node.url) as client:
        client.create_topic("copy", partitions=PARTITIONS)
        query = (
            stage.stream(per_batch)
            .select("value")
            .writeStream.format("quiver")
            .option("url", stage.node.url)
            .option("topic", "copy")
            .option("checkpointLocation", f"{stage.folder}/writing")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        batches = [one for one in query.recentProgress if one["numInputRows"]]
        with client.read("copy", columns=["priority"]) as reader:
            assert sum(map(len, reader)) == stage.part
        client.delete_topic("copy")
    later = batches[1:] or batches  # the first starts Spark's Python processes
    rows = sum(one["numInputRows"] for one in later)
    seconds = sum(one["durationMs"]["triggerExecution"] for one in later) / 1000
    return [
        Row(
            name="Spark stream write, exactly once",
            value=rows / seconds,
            unit="msg/s",
            target=at_least(150_000),
            note=f"topic to topic, 1 KB, {per_batch:,} a batch; read, published in one transaction",
        )
    ]
