"""``dead-letters``: what failed, grouped by error, origin and time, and how to send it back."""

from __future__ import annotations

import re
import shlex

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f

from quiver.spark.pipelines.logs import shape_of

COLUMNS = (
    "topic,partition,offset,timestamp,value,origin_topic,origin_partition,origin_offset,"
    "origin_subscription,origin_time,deliveries,last_error"
)
"""What to read for this pipeline."""
NO_ERROR = "(no error was given)"


def dead_letter_groups(letters: DataFrame, *, window: str = "1 hour") -> DataFrame:
    """Dead letters by shape of their last error, origin and window, the most frequent first."""
    error = f.coalesce(f.col("last_error"), f.lit(NO_ERROR))
    return (
        letters.where(f.col("origin_topic").isNotNull())
        .groupBy(
            shape_of(error).alias("error"),
            "origin_topic",
            "origin_subscription",
            f.window("timestamp", window).alias("window"),
        )
        .agg(
            f.count("*").alias("count"),
            f.max("deliveries").alias("deliveries_max"),
            f.min("timestamp").alias("first"),
            f.max("timestamp").alias("last"),
            f.first(error).alias("example"),
            f.first("topic").alias("dead_letter_topic"),
        )
        .select(
            f.col("window.start").alias("start"),
            "origin_topic",
            "origin_subscription",
            "error",
            "count",
            "deliveries_max",
            "first",
            "last",
            "example",
            "dead_letter_topic",
        )
        .orderBy(f.desc("count"), "start")
    )


def redrive_command(group: Row) -> str:
    """The command that sends the dead letters of a group back."""
    condition = f"origin_topic = '{group.origin_topic}'"
    if group.error != NO_ERROR:
        condition += f" and last_error like '{_pattern(group.error)}'"
    name, condition = shlex.quote(group.origin_subscription), shlex.quote(condition)
    return f"quiver redrive {name} --filter {condition}"


def _pattern(shape: str) -> str:
    """What matches every error of a shape, as a filter has it."""
    text = re.sub(r"([%_\\])", r"\\\1", shape)
    return re.sub("'…'|…|#", "%", text).replace("'", "''")
