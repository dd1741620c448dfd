"""The pipeline ``archive``, end to end: a topic into a partitioned table of plain Parquet."""

from __future__ import annotations

import shutil

from benchmarks.harness.bench import Bench
from benchmarks.harness.row import Row, at_least
from benchmarks.spark.stage import PART, Stage
from quiver.spark.pipelines.runner import BatchMetrics, PipelineSettings
from quiver.spark.pipelines.runs import run_archive


def archive_a_topic(bench: Bench, stage: Stage) -> list[Row]:
    rows = []
    for table_format in ("parquet", "delta")[: bench.pick(2, 1)]:
        batches: list[BatchMetrics] = []
        settings = PipelineSettings(
            url=stage.node.url,
            checkpoint=f"{stage.folder}/archiving-{table_format}",
            once=True,
            batch_rows_max=bench.pick(250_000, 1_000),
        )
        to = f"{stage.folder}/lake-{table_format}"
        done = run_archive(
            settings, PART, to, table_format=table_format, json=False, on_batch=batches.append
        )
        assert (done.messages, done.bad) == (stage.part, 0)
        shutil.rmtree(to)
        later = batches[1:] or batches
        rows.append(
            Row(
                name=f"quiver pipeline archive, {table_format}",
                value=sum(one.rows for one in later) / sum(one.seconds for one in later),
                unit="msg/s",
                target=at_least(100_000),
                note="1 KB payloads as bytes, by topic, date and hour, 250,000 a batch",
            )
        )
    return rows
