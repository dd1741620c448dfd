"""Tasks killed with SIGKILL at a point of their write: Spark runs them again, and each row arrives once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage

from quiver.client import OutgoingMessage
from quiver.spark.options import write_options
from quiver.spark.source import QuiverDataSource, register
from quiver.spark.write.sink import BatchWriter, StreamWriter


def die_once(folder: str, point: str) -> None:
    """Kill this process, a task's, the first time that one comes by here."""
    mark = Path(folder) / point
    if point == Path(folder).name and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


class Dying:
    """A writer whose first task dies."""

    folder: str

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        def rows() -> Iterator[pa.RecordBatch]:
            yield from iterator
            die_once(self.folder, "writing")

        written = super().write(rows())  # type: ignore[misc]
        die_once(self.folder, "written")
        return written


class DyingBatchWriter(Dying, BatchWriter):
    pass


class DyingStreamWriter(Dying, StreamWriter):
    pass


class DyingDataSource(QuiverDataSource):
    """The folder of marks is the path that Spark is given."""

    @classmethod
    def name(cls) -> str:
        return "dying"

    def writer(self, schema, overwrite):
        return self._with_folder(DyingBatchWriter(write_options(self.options), schema))

    def streamWriter(self, schema, overwrite):  # noqa: N802 - Spark's name
        return self._with_folder(DyingStreamWriter(write_options(self.options), schema))

    def _with_folder(self, writer):
        writer.folder = self.options["path"]
        return writer


@pytest.fixture(params=["writing", "written"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where marks are; its name is the point at which a task dies."""
    found = tmp_path / request.param
    found.mkdir()
    return found


@pytest.fixture
def dying(spark):
    spark.dataSource.register(DyingDataSource)
    register(spark)
    return spark


def test_a_job_whose_task_is_killed_writes_each_row_once(
    client, dying, node, topic, folder
) -> None:
    frame = dying.range(1000, numPartitions=2).selectExpr("cast(id as string) as value")
    writer = frame.write.format("dying").option("url", node.url).option("topic", topic)
    writer.mode("append").save(str(folder))
    assert list(folder.iterdir()), "a task died"
    values = sorted(int(one.payload) for one in client.read(topic).messages())
    assert values == list(range(1000))


def test_a_query_whose_task_is_killed_writes_each_row_once(
    client, dying, node, topic, stream, folder, tmp_path
) -> None:
    copy = f"{topic}-copy"
    client.create_topic(copy, partitions=2)
    client.publish_many(topic, [OutgoingMessage(payload=str(n)) for n in range(300)])
    query = (
        stream(topic, maxOffsetsPerTrigger=100)
        .select("value")
        .writeStream.format("dying")
        .options(url=node.url, topic=copy, checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder))
    )
    query.awaitTermination()
    assert list(folder.iterdir()), "a task died"
    values = sorted(int(one.payload) for one in client.read(copy).messages())
    assert values == list(range(300))
