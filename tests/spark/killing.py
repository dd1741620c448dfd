"""A driver, to be run in a process of its own, that may be killed at a point of its query.

``main`` copies one topic to another with Spark and dies by SIGKILL where ``KILL_AT`` says, in the
second batch. The point is reached in one of Spark's Python processes; what is killed is the JVM.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from quiver.client import Client
from quiver.client.transaction.shared import PartReference
from quiver.spark.options import read_options, write_options
from quiver.spark.read.stream_reader import StreamReader
from quiver.spark.session import session
from quiver.spark.source import QuiverDataSource
from quiver.spark.write.sink import StreamWriter

BATCH = 100
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""For programs that do not run for long."""


def kill_driver() -> None:
    with open(os.environ["KILL_PID"]) as file:
        os.kill(int(file.read()), signal.SIGKILL)
    signal.pause()  # until Spark ends this process too


class KillingReader(StreamReader):
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for batch in super().read(partition):
            yield batch
            if os.environ["KILL_AT"] == "reading" and partition.range.start > 0:
                kill_driver()


class KillingWriter(StreamWriter):
    def _commit_parts(
        self, client: Client, sink: str, batch: int, parts: list[PartReference]
    ) -> None:
        if batch == 1 and os.environ["KILL_AT"] == "written":
            kill_driver()
        super()._commit_parts(client, sink, batch, parts)
        if batch == 1 and os.environ["KILL_AT"] == "committed":
            kill_driver()


class KillingDataSource(QuiverDataSource):
    def streamReader(self, schema):  # noqa: N802 - Spark's name
        return KillingReader(read_options(self.options))

    def streamWriter(self, schema, overwrite):  # noqa: N802
        return KillingWriter(write_options(self.options), schema)


def main(url: str, origin: str, copy: str, checkpoint: str, master: str = "local[2]") -> None:
    spark = session(
        "killed",
        master=master,
        settings={
            "spark.driver.extraJavaOptions": JVM,
            "spark.executor.extraJavaOptions": JVM,
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.driver.host": "127.0.0.1",
        },
    )
    with open(os.environ["KILL_PID"], "w") as file:
        file.write(str(spark.sparkContext._gateway.proc.pid))
    spark.dataSource.register(KillingDataSource)
    frame = (
        spark.readStream.format("quiver")
        .option("url", url)
        .option("topic", origin)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", BATCH)
        .load()
    )
    (
        frame.select("key", "value")
        .writeStream.format("quiver")
        .option("url", url)
        .option("topic", copy)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
