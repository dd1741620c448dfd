"""The smallest micro-batch: from a message that is there to the batch that has it being done."""

from __future__ import annotations

import statistics

from benchmarks.harness.bench import Bench
from benchmarks.harness.row import Row, at_most
from benchmarks.spark.stage import PARTITIONS, Stage
from quiver import Client


def smallest_micro_batch(bench: Bench, stage: Stage) -> list[Row]:
    turns = bench.pick(60, 3)
    with Client(stage.node.url) as client:
        client.create_topic("small", partitions=PARTITIONS)
        frame = stage.stream(10_000, "small")
        writer = frame.writeStream.format("noop")
        query = writer.option("checkpointLocation", f"{stage.folder}/small").start()
        try:
            for _ in range(turns):
                client.publish_many("small", [b"x" * 100] * 100)
                query.processAllAvailable()
            took = [
                one["durationMs"]["triggerExecution"]
                for one in query.recentProgress
                if one["numInputRows"]
            ]
        finally:
            query.stop()
    # The first batches warm up the JVM.
    return [
        Row(
            name="Spark micro-batch of 100 messages",
            value=statistics.median(took[len(took) // 2 :]),
            unit="ms",
            target=at_most(120),
            note=f"median of the last {len(took) - len(took) // 2}, settings of quiver pipeline",
        )
    ]
