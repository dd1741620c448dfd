"""Two topics joined in a window of time: what belongs together and comes close together."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f


def joined(left: DataFrame, right: DataFrame, *, on: str, within: str = "10 minutes") -> DataFrame:
    """Rows of both with the same value of ``on`` and at most ``within`` from left to right.

    Both have a column ``timestamp``; the result has the columns of both, the left one's first.
    """
    ours = left.withWatermark("timestamp", within).alias("l")
    theirs = right.withWatermark("timestamp", within).alias("r")
    together = (
        (f.col(f"l.{on}") == f.col(f"r.{on}"))
        & (f.col("r.timestamp") >= f.col("l.timestamp") - f.expr(f"interval {within}"))
        & (f.col("r.timestamp") <= f.col("l.timestamp") + f.expr(f"interval {within}"))
    )
    mine = set(left.columns)
    added = [f.col(f"r.{name}") for name in right.columns if name not in mine]
    return ours.join(theirs, together).select("l.*", *added)
