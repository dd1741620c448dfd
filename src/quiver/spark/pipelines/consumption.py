"""The other half of ``metrics``: how subscriptions fare, by window, from what the nodes count.

Time in queue is from when a message was stored to its acknowledgement. Nodes keep it as a histogram;
percentiles are read off that as Prometheus does, evenly within a bound, and are as exact as the
bounds are close.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import (
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from quiver.metrics.distribution import QUEUE_BOUNDS
from quiver.spark.pipelines.samples import COUNTED, STATES

_COUNTS = f"struct<{','.join(f'{name}:bigint' for name in COUNTED)},within:array<bigint>>"
_SAMPLE = (
    f"subscription string, seconds double, counts {_COUNTS}, oldest_age_seconds double, "
    + ", ".join(f"{name} bigint" for name in STATES)
)
_QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_TIMES = [f"time_in_queue_{name}_ms" for name in _QUANTILES]
_RATES = ("acked_per_second", "redelivery_rate", "error_rate")
SCHEMA = StructType(
    [
        StructField("start", TimestampType()),
        StructField("end", TimestampType()),
        StructField("subscription", StringType()),
        *(StructField(name, LongType()) for name in (*COUNTED, *STATES, "lag_max")),
        *(StructField(name, DoubleType()) for name in (*_RATES, *_TIMES, "oldest_age_seconds")),
    ]
)
"""The row of a window."""


def by_subscription(
    samples: DataFrame, *, window: str = "1 minute", watermark: str = "1 minute"
) -> DataFrame:
    """One row for each window and subscription, from messages that a ``Sampler`` stored."""
    read = f.from_json(f.col("value").cast("string"), _SAMPLE)
    within = [f.sum(f.col("s.counts.within")[place]) for place in range(len(QUEUE_BOUNDS) + 1)]
    grouped = (
        samples.select("timestamp", read.alias("s"))
        .withWatermark("timestamp", watermark)
        .groupBy(f.window("timestamp", window), "s.subscription")
        .agg(
            f.max_by("s", "timestamp").alias("last"),
            f.sum("s.seconds").alias("seconds"),
            f.max("s.lag").alias("lag_max"),
            *(f.sum(f"s.counts.{name}").alias(name) for name in COUNTED),
            f.array(*within).alias("within"),
        )
    )
    delivered = f.greatest("delivered", f.lit(1))
    return grouped.select(
        f.col("window.start").alias("start"),
        f.col("window.end").alias("end"),
        "subscription",
        *COUNTED,
        *(f.col(f"last.{name}").alias(name) for name in STATES),
        "lag_max",
        (f.col("acked") / f.greatest("seconds", f.lit(0.001))).alias("acked_per_second"),
        (f.col("redelivered") / delivered).alias("redelivery_rate"),
        (f.col("nacked") / delivered).alias("error_rate"),
        *(
            (_quantile(share) * 1000).alias(name)
            for name, share in zip(_TIMES, _QUANTILES.values(), strict=True)
        ),
        f.col("last.oldest_age_seconds").alias("oldest_age_seconds"),
    )


def _quantile(share: float) -> Column:
    """So large a share of the times is below this; null if there are none."""
    within = f.col("within")
    rank = within[len(QUEUE_BOUNDS)] * share
    found = f.when(rank == 0, f.lit(None).cast("double"))
    for place, bound in enumerate(QUEUE_BOUNDS):
        least = QUEUE_BOUNDS[place - 1] if place else 0.0
        before = within[place - 1] if place else f.lit(0)
        part = f.try_divide(rank - before, within[place] - before)
        found = found.when(within[place] >= rank, f.lit(least) + part * (bound - least))
    return found.otherwise(float(QUEUE_BOUNDS[-1]))
