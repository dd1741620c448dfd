"""``dedupe``: a topic copied without the messages that come again within a time."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

SAME = "concat_ws(':', hex(coalesce(key, X'')), sha2(value, 256))"
"""What makes two messages the same unless told otherwise: key and value."""


def deduplicated(messages: DataFrame, *, by: str = SAME, within: str = "10 minutes") -> DataFrame:
    """Of messages that are the same by an SQL expression, the first within the time."""
    return (
        messages.withColumn("_same", f.expr(by))
        .withWatermark("timestamp", within)
        .dropDuplicatesWithinWatermark(["_same"])
        .select("key", "value", "headers")
    )
