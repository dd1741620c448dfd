"""What every benchmark of Spark needs: a node with a topic of 1 KB messages, and a session."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from pyspark.sql import DataFrame, SparkSession

from benchmarks.harness.bench import Bench
from benchmarks.harness.child import Child, served
from benchmarks.harness.raw_client import publish_pipelined
from benchmarks.log.subject import ready_batch
from quiver import Client
from quiver.spark.session import session

TOPIC, PART = "messages", "part"
PARTITIONS = 2
BATCH = 1000


class Stage(msgspec.Struct):
    spark: SparkSession
    node: Child
    folder: str
    count: int
    """Messages in the topic."""
    part: int
    """Messages in the smaller topic, for what takes longer."""

    def load(self, topic: str = TOPIC) -> DataFrame:
        reader = self.spark.read.format("quiver").option("url", self.node.url)
        return reader.option("topic", topic).load()

    def stream(self, rows_per_batch: int, topic: str = PART) -> DataFrame:
        reader = self.spark.readStream.format("quiver").option("url", self.node.url)
        return (
            reader.option("topic", topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", rows_per_batch)
            .load()
        )


@contextmanager
def staged(bench: Bench, count: int, part: int) -> Iterator[Stage]:
    """Topics with so many messages of 1 KB, in two partitions, and Spark on two cores."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    os.environ["PYTHONPATH"] = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    with bench.folder() as folder, served(folder) as node:
        with Client(node.url) as client:
            for topic, messages in ((TOPIC, count), (PART, part)):
                client.create_topic(topic, partitions=PARTITIONS)
                size = min(BATCH, messages // PARTITIONS)
                batches = [ready_batch(size, 1_000, seed) for seed in range(8)]
                publish_pipelined(
                    node.address, topic, batches, messages // size, partitions=PARTITIONS
                )
        found = SparkSession.getActiveSession()
        spark = session(
            "benchmark",
            master="local[2]",
            settings={
                "spark.driver.memory": "3g",
                "spark.sql.warehouse.dir": f"{folder}/warehouse",
                "spark.local.dir": f"{folder}/local",
            },
        )
        try:
            yield Stage(spark, node, os.path.abspath(folder), count, part)
        finally:
            if found is None:
                spark.stop()


def seconds_of(work) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
