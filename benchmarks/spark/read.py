"""Reading a topic with Spark, as a batch and as a stream, against Parquet of the same rows."""

from __future__ import annotations

import itertools
import shutil

from benchmarks.harness.bench import Bench
from benchmarks.harness.rounds import compare
from benchmarks.harness.row import Row, ratio_at_least
from benchmarks.spark.stage import PART, TOPIC, Stage, seconds_of
from benchmarks.spark.tuples import TupleSource

_ROWS_PER_BATCH = 250_000


def read_batches(bench: Bench, stage: Stage) -> list[Row]:
    count, some = stage.count, bench.pick(200_000, 1_000)
    files, spark = f"{stage.folder}/parquet", stage.spark
    stage.load().write.parquet(files)

    def ours() -> float:
        return count / seconds_of(lambda: _to_nowhere(stage.load()))

    def parquet() -> float:
        return count / seconds_of(lambda: _to_nowhere(spark.read.parquet(files)))

    spark.dataSource.register(TupleSource)
    reader = spark.read.format("tuples").option("url", stage.node.url).option("topic", TOPIC)
    slow = reader.option("rows", some // 2).load()

    def tuples() -> float:
        return some / seconds_of(lambda: _to_nowhere(slow))

    rounds = bench.pick(3, 1)
    by_parquet = compare(rounds, ours, parquet)
    if not bench.quick:
        tuples()
    by_tuples = compare(bench.pick(2, 1), ours, tuples)
    of = f"{count:,} messages of 1 KB, two partitions, local[2] with the node on the same cores"
    return [
        Row(
            name="Spark batch read into noop",
            value=by_parquet.value,
            unit="msg/s",
            yardstick=by_parquet.yardstick,
            yardstick_name="spark.read.parquet",
            ratio=by_parquet.ratio,
            target=ratio_at_least(0.8),
            note=of,
        ),
        Row(
            name="Spark batch read against a source of tuples",
            value=by_tuples.value,
            unit="msg/s",
            yardstick=by_tuples.yardstick,
            yardstick_name="rows as Python tuples",
            ratio=by_tuples.ratio,
            target=ratio_at_least(5),
            note=f"the tuples are the first {some:,}",
        ),
    ]


def read_streams(bench: Bench, stage: Stage) -> list[Row]:
    count, per_batch = stage.part, bench.pick(_ROWS_PER_BATCH, 1_000)
    files, numbers = f"{stage.folder}/parts", itertools.count()
    stage.load(PART).repartition(max(1, count // per_batch)).write.parquet(files)
    schema = stage.spark.read.parquet(files).schema

    def ours() -> float:
        return count / _stream_seconds(stage, stage.stream(per_batch), next(numbers))

    def parquet() -> float:
        reader = stage.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        return count / _stream_seconds(stage, reader.parquet(files), next(numbers))

    compared = compare(bench.pick(3, 1), ours, parquet)
    shutil.rmtree(files)
    return [
        Row(
            name="Spark stream read, AvailableNow",
            value=compared.value,
            unit="msg/s",
            yardstick=compared.yardstick,
            yardstick_name="Parquet stream source",
            ratio=compared.ratio,
            target=ratio_at_least(1),
            note=f"{count:,} messages of 1 KB, {per_batch:,} a batch",
        )
    ]


def _to_nowhere(frame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _stream_seconds(stage: Stage, frame, number: int) -> float:
    """How long the batches of a stream into nowhere take together."""
    query = (
        frame.writeStream.format("noop")
        .option("checkpointLocation", f"{stage.folder}/reading-{number}")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    done = [one for one in query.recentProgress if one["numInputRows"]]
    return sum(one["durationMs"]["triggerExecution"] for one in done) / 1000
