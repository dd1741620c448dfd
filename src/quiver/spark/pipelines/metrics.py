"""One half of ``metrics``: the metrics of topics by window, from their messages.

Production rate and bytes come from when messages were stored, delays from when they happened
(``event_time``) to then; errors and redeliveries from the dead letters, and how long those took to be
given up. How messages are consumed is in ``consumption``.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import (
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

COLUMNS = "value,topic,partition,offset,timestamp,event_time,origin_topic,origin_time,deliveries"
"""What to read for this pipeline."""
SCHEMA = StructType(
    [
        StructField("start", TimestampType()),
        StructField("end", TimestampType()),
        StructField("topic", StringType()),
        StructField("messages", LongType()),
        StructField("bytes", LongType()),
        StructField("messages_per_second", DoubleType()),
        StructField("bytes_per_second", DoubleType()),
        StructField("delay_p50_ms", DoubleType()),
        StructField("delay_p95_ms", DoubleType()),
        StructField("delay_p99_ms", DoubleType()),
        StructField("dead_letters", LongType()),
        StructField("redeliveries", LongType()),
        StructField("error_rate", DoubleType()),
        StructField("dead_after_p95_ms", DoubleType()),
    ]
)
"""The row of a window."""


def by_window(
    messages: DataFrame, *, window: str = "1 minute", watermark: str = "1 minute"
) -> DataFrame:
    """One row for each window and topic; dead letters count for the topic that they come from."""
    is_dead = f.col("origin_topic").isNotNull()
    alive = ~is_dead
    stored_us = f.unix_micros("timestamp")
    delay_ms = (stored_us - f.unix_micros("event_time")) / 1000
    dead_after_ms = (stored_us - f.unix_micros("origin_time")) / 1000
    seconds = (f.unix_micros(f.col("window.end")) - f.unix_micros(f.col("window.start"))) / 1e6
    sizes = f.when(alive, f.octet_length("value"))
    delays = f.percentile_approx(f.when(alive, delay_ms), [0.5, 0.95, 0.99])
    grouped = (
        messages.withWatermark("timestamp", watermark)
        .groupBy(f.window("timestamp", window), f.coalesce("origin_topic", "topic").alias("topic"))
        .agg(
            f.count_if(alive).alias("messages"),
            f.coalesce(f.sum(sizes), f.lit(0)).alias("bytes"),
            delays.alias("delays"),
            f.count_if(is_dead).alias("dead_letters"),
            f.coalesce(f.sum(f.col("deliveries") - 1), f.lit(0)).alias("redeliveries"),
            f.percentile_approx(f.when(is_dead, dead_after_ms), 0.95).alias("dead_after_p95_ms"),
        )
    )
    return grouped.select(
        f.col("window.start").alias("start"),
        f.col("window.end").alias("end"),
        "topic",
        "messages",
        "bytes",
        (f.col("messages") / seconds).alias("messages_per_second"),
        (f.col("bytes") / seconds).alias("bytes_per_second"),
        f.col("delays")[0].alias("delay_p50_ms"),
        f.col("delays")[1].alias("delay_p95_ms"),
        f.col("delays")[2].alias("delay_p99_ms"),
        "dead_letters",
        "redeliveries",
        (f.col("dead_letters") / f.greatest(f.col("messages"), f.lit(1))).alias("error_rate"),
        "dead_after_p95_ms",
    )


def as_messages(windows: DataFrame, key: str = "topic") -> DataFrame:
    """The rows as JSON messages."""
    return windows.select(
        f.col(key).alias("key"), f.to_json(f.struct(*windows.columns)).alias("value")
    )
