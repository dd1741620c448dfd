"""The pipeline ``metrics`` as it is run: topics from their messages, subscriptions from the nodes."""

from __future__ import annotations

import os

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from quiver.client import Client
from quiver.spark.pipelines import archive, consumption, metrics
from quiver.spark.pipelines.outputs import finished_table, require_topic, to_table, to_topic
from quiver.spark.pipelines.report import Report
from quiver.spark.pipelines.runner import (
    BatchMetrics,
    PipelineSettings,
    followed,
    ignore_batch,
    messages,
    spark_for,
    started,
    without,
)
from quiver.spark.pipelines.sampler import open_sampler


class _Half(msgspec.Struct, frozen=True, kw_only=True):
    """Windows of one kind, on their way into a topic and from there into a table."""

    spark: SparkSession
    name: str
    key: str
    windows: DataFrame
    schema: StructType
    topic: str
    path: str
    table_format: str
    charts: tuple[str, ...]

    def compute(self, settings: PipelineSettings) -> StreamingQuery:
        rows = metrics.as_messages(self.windows, self.key)
        writer = to_topic(rows, settings, self.topic)
        return started(writer, settings, self.name)

    def keep(self, settings: PipelineSettings) -> StreamingQuery:
        stored = messages(self.spark, settings, topic=self.topic)
        writer = to_table(archive.archived(stored, self.schema), self.path, self.table_format)
        return started(writer, settings, f"{self.name}-table")

    def add_to(self, report: Report) -> None:
        found = self.spark.table(self.name).select("value.*").orderBy("start").collect()
        starts = [row.start for row in found]
        for chart in self.charts:
            title = f"{self.name}: {chart.replace('_', ' ')}"
            report.line(title, starts, [row[chart] or 0 for row in found])
        report.table(self.name, self.schema.names, [tuple(row) for row in found])


def run_metrics(
    settings: PipelineSettings,
    topics: str,
    to: str,
    *,
    into: str,
    window: str = "1 minute",
    watermark: str = "1 minute",
    table_format: str = "parquet",
) -> int:
    """Metrics by window into topics, and from there into tables: how many messages."""
    samples, of_subscriptions = f"{into}-samples", f"{into}-subscriptions"
    chosen = without(topics, into, samples, of_subscriptions)
    with spark_for("metrics", settings) as spark, Client(settings.url) as client:
        for topic in (into, of_subscriptions):
            require_topic(client, topic)
        with open_sampler(settings.url, samples) as sampler:
            sources = (
                messages(
                    spark,
                    settings,
                    subscribePattern=chosen,
                    columns=metrics.COLUMNS,
                    **settings.reporting,
                ),
                messages(spark, settings, topic=samples),
            )
            by_topic = _Half(
                spark=spark,
                name="windows",
                key="topic",
                windows=metrics.by_window(sources[0], window=window, watermark=watermark),
                schema=metrics.SCHEMA,
                topic=into,
                path=os.path.join(to, "windows"),
                table_format=table_format,
                charts=("messages_per_second", "delay_p95_ms", "error_rate"),
            )
            by_subscription = _Half(
                spark=spark,
                name="subscriptions",
                key="subscription",
                windows=consumption.by_subscription(sources[1], window=window, watermark=watermark),
                schema=consumption.SCHEMA,
                topic=of_subscriptions,
                path=os.path.join(to, "subscriptions"),
                table_format=table_format,
                charts=("acked_per_second", "lag", "time_in_queue_p95_ms", "redelivery_rate"),
            )
            with sampler.going_on():
                batches = _run(by_topic, by_subscription, settings)
        # With --once this is all that the other queries do; otherwise what has come since.
        once = msgspec.structs.replace(settings, once=True)
        followed(by_subscription.compute(once), ignore_batch)
        followed(by_topic.keep(once), ignore_batch, beside=[by_subscription.keep(once)])
        halves = [half for half in (by_topic, by_subscription) if _finished(half)]
        if settings.report is not None:
            report = Report(f"Metrics of {topics}")
            report.batches(batches)
            for half in halves:
                half.add_to(report)
            report.write(settings.report)
    return sum(one.rows for one in batches)


def _run(by_topic: _Half, by_subscription: _Half, settings: PipelineSettings) -> list[BatchMetrics]:
    """Until everything is processed, or until Ctrl-C."""
    main = by_topic.compute(settings)
    if settings.once:
        return followed(main)
    others = [by_subscription.compute(settings)]
    others += [half.keep(settings) for half in (by_topic, by_subscription)]
    return followed(main, beside=others)


def _finished(half: _Half) -> bool:
    """Whether anything is in the half's table, which is known to other engines from now on."""
    table = finished_table(half.spark, half.name, half.path, half.table_format)
    return bool(table.files())
