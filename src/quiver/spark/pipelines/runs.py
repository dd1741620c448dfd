"""The pipelines of the command line: source, transformation, sink and report."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import msgspec
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as f

from quiver.client import Client
from quiver.spark.pipelines import archive, dead_letters, dedupe, logs, replay
from quiver.spark.pipelines.outputs import finished_table, require_topic, to_table, to_topic
from quiver.spark.pipelines.report import Report
from quiver.spark.pipelines.runner import (
    BAD_RECORDS,
    BatchMetrics,
    PipelineSettings,
    followed,
    messages,
    spark_for,
    started,
    without,
)
from quiver.spark.tables.sink import REASON
from quiver.spark.tables.table import open_table
from quiver.spark.tables.views import register_view


class Archived(msgspec.Struct, frozen=True, kw_only=True):
    """What an archive did."""

    messages: int
    """Rows of the table."""
    bad: int
    """Bad records, which are in a table of their own."""


def run_archive(
    settings: PipelineSettings,
    topics: str,
    to: str,
    *,
    table_format: str = "parquet",
    json: bool = True,
    schema: str | None = None,
    on_batch: Callable[[BatchMetrics], None] | None = None,
) -> Archived:
    """Topics (a pattern) into a table, bad records into ``{to}-bad``: how many messages of each."""
    with spark_for("archive", settings) as spark:
        source = messages(spark, settings, subscribePattern=topics, **settings.reporting)
        payload = None
        if json or schema is not None:
            sample = (
                spark.read.format("quiver")
                .option("url", settings.url)
                .option("subscribePattern", topics)
                .load()
            )
            payload = archive.schema_for(spark, sample, settings.checkpoint, schema)
        rows = archive.archived(source, payload)
        if payload is not None:
            rows = rows.observe(BAD_RECORDS, f.count(REASON).alias("count"))
        writer = to_table(rows, to, table_format, archive.PARTITION_BY, has_bad=payload is not None)
        batches = followed(started(writer, settings), on_batch)
        table = finished_table(spark, "archive", to, table_format, archive.PARTITION_BY)
        if settings.report is not None:
            report = Report(f"Archive of {topics}")
            report.batches(batches)
            if table.files():
                by_topic = spark.table("archive").groupBy("topic").count().orderBy("topic")
                found = [(row.topic, row["count"]) for row in by_topic.collect()]
                report.bars("Messages in the table, by topic", *zip(*found, strict=True))
            report.write(settings.report)
    bad = sum(one.bad for one in batches)
    return Archived(messages=sum(one.rows for one in batches) - bad, bad=bad)


def run_logs(
    settings: PipelineSettings,
    topics: str,
    to: str,
    *,
    into: str,
    window: str = "1 minute",
    watermark: str = "1 minute",
    least: int = 5,
    table_format: str = "parquet",
) -> int:
    """Lines into a table, and errors that come often into a topic of alerts."""
    with spark_for("logs", settings) as spark, Client(settings.url) as client:
        require_topic(client, into)
        chosen = without(topics, into)
        source = messages(spark, settings, subscribePattern=chosen, **settings.reporting)
        lines = logs.parsed_lines(source)
        watched = logs.parsed_lines(messages(spark, settings, subscribePattern=chosen))
        alerts = logs.alerts(watched, window=window, watermark=watermark, least=least)
        alerting = started(to_topic(alerts, settings, into), settings, "alerts")
        keeping = started(to_table(lines, to, table_format, logs.PARTITION_BY), settings)
        batches = followed(keeping, beside=[alerting])
        table = finished_table(spark, "logs", to, table_format, logs.PARTITION_BY)
        if settings.report is not None:
            report = Report(f"Logs of {topics}")
            report.batches(batches)
            if table.files():
                _report_logs(spark, report)
            report.write(settings.report)
    return sum(one.rows for one in batches)


def _report_logs(spark: SparkSession, report: Report) -> None:
    counts = spark.table("logs").groupBy("level").count().orderBy("level").collect()
    report.bars("Lines by level", *zip(*[(r.level, r["count"]) for r in counts], strict=True))
    errors = spark.table("logs").where(f"level in {logs.ERRORS}")
    for title, column in (("Errors by shape", "shape"), ("Top offenders", "source")):
        top = errors.groupBy(column).count().orderBy("count", ascending=False).limit(20).collect()
        report.table(title, [column, "count"], [tuple(row) for row in top])


def run_dedupe(
    settings: PipelineSettings,
    topic: str,
    into: str,
    *,
    by: str = dedupe.SAME,
    within: str = "10 minutes",
) -> int:
    """Copy a topic without duplicates."""
    with spark_for("dedupe", settings) as spark:
        source = messages(spark, settings, topic=topic, **settings.reporting)
        copied = dedupe.deduplicated(source, by=by, within=within)
        batches = followed(started(to_topic(copied, settings, into), settings))
    if settings.report is not None:
        report = Report(f"{topic} without duplicates")
        report.batches(batches)
        report.write(settings.report)
    return sum(one.rows for one in batches)


def run_dead_letters(
    settings: PipelineSettings, topics: str, to: str | None, *, window: str = "1 hour"
) -> list[tuple[str, ...]]:
    """Groups of dead letters: error, origin, subscription, count, and the command for redrive."""
    with spark_for("dead letters", settings) as spark:
        letters = (
            spark.read.format("quiver")
            .option("url", settings.url)
            .option("subscribePattern", topics)
            .option("columns", dead_letters.COLUMNS)
            .load()
        )
        groups = dead_letters.dead_letter_groups(letters, window=window).persist()
        found = groups.collect()
        if to is not None and found:
            groups.coalesce(1).write.mode("overwrite").parquet(to)
        if settings.report is not None:
            report = Report("Dead letters")
            report.bars("By origin", [r.origin_topic for r in found], [r["count"] for r in found])
            report.line("By time", [r.start for r in found], [r["count"] for r in found])
            report.table(
                "Groups",
                ["since", "origin", "subscription", "error", "count", "send back"],
                [(r.start, *_group(r)) for r in found],
            )
            report.write(settings.report)
        return [tuple(map(str, _group(row))) for row in found]


def _group(row: Row) -> tuple[Any, ...]:
    command = dead_letters.redrive_command(row)
    return row.origin_topic, row.origin_subscription, row.error, row["count"], command


def run_replay(
    settings: PipelineSettings,
    source: str,
    into: str,
    *,
    table_format: str = "parquet",
    where: str | None = None,
    per_second: int = 10_000,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> int:
    """Rows of a table into a topic; the checkpoint's name is the name of the replay."""
    with spark_for("replay", settings) as spark:
        rows = register_view(spark, open_table(table_format, source, ()), source, "replayed")
        ordered = replay.in_key_order(rows, where=where)
        began = time.monotonic()
        count = replay.replay(
            ordered,
            url=settings.url,
            topic=into,
            job=os.path.basename(os.path.abspath(settings.checkpoint)),
            per_second=per_second,
            on_progress=on_progress,
        )
        seconds = time.monotonic() - began
    if settings.report is not None:
        report = Report(f"Replay into {into}")
        report.batches([BatchMetrics(time.time(), count, count / max(seconds, 0.001), 0, seconds)])
        report.write(settings.report)
    return count
