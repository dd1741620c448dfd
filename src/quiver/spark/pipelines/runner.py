"""Runs streaming queries from the command line: one line for each batch, and a clean stop on Ctrl-C.

A query that is stopped or killed continues from its checkpoint.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from quiver.errors import QuiverError
from quiver.spark.session import session
from quiver.spark.tables.sink import register_tables

_POLL_S = 0.2


class PipelineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What every pipeline can be told."""

    url: str
    checkpoint: str
    master: str = "local[*]"
    once: bool = False
    """End when everything that is there now is processed."""
    every: str = "1 second"
    report: str | None = None
    batch_rows_max: int = 250_000
    """Messages in a micro-batch, at most."""
    subscription: str | None = None
    """What is told how far the pipeline has come, so that its lag is seen."""
    spark: dict[str, str] = {}
    """Further settings of the session."""

    @property
    def reporting(self) -> dict[str, str]:
        """The option for the one query of a pipeline that tells its subscription."""
        return {} if self.subscription is None else {"subscription": self.subscription}


BAD_RECORDS = "bad-records"
"""What a query observes that counts its bad records, as ``count``."""


class BatchMetrics(msgspec.Struct, frozen=True):
    """What is told and charted of one micro-batch."""

    at: float
    rows: int
    rows_per_second: float
    lag: int
    seconds: float
    bad: int = 0
    """Those of the rows that are bad records."""


@contextmanager
def spark_for(name: str, settings: PipelineSettings) -> Iterator[SparkSession]:
    """A session for one pipeline; it is stopped afterwards, unless it was there before."""
    found = SparkSession.getActiveSession()
    spark = session(f"quiver {name}", master=settings.master, settings=settings.spark)
    register_tables(spark)
    try:
        yield spark
    finally:
        if found is None:
            spark.stop()


def messages(spark: SparkSession, settings: PipelineSettings, **options: str) -> DataFrame:
    """A stream of messages from the beginning on."""
    reader = (
        spark.readStream.format("quiver")
        .option("url", settings.url)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", settings.batch_rows_max)
    )
    return reader.options(**options).load()


def without(topics: str, *own: str) -> str:
    """A pattern for the same topics but those that the pipeline itself writes."""
    return f"(?!({'|'.join(map(re.escape, own))})$)({topics})"


def started(
    writer: DataStreamWriter, settings: PipelineSettings, part: str = "main"
) -> StreamingQuery:
    writer = writer.option("checkpointLocation", f"{settings.checkpoint}/{part}").queryName(part)
    if settings.once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=settings.every).start()


def followed(
    query: StreamingQuery,
    on_batch: Callable[[BatchMetrics], None] | None = None,
    beside: Sequence[StreamingQuery] = (),
) -> list[BatchMetrics]:
    """Wait for the query's end, or for Ctrl-C; what its batches were like.

    Queries ``beside`` it end with it, with the same trigger: if one fails, all do.
    """
    on_batch = on_batch or _print
    batches: list[BatchMetrics] = []
    last = -1
    everyone = (query, *beside)
    try:
        while True:
            active = [one.isActive for one in everyone]
            for progress in query.recentProgress:
                if progress["batchId"] > last and progress["numInputRows"]:
                    last = progress["batchId"]
                    batches.append(_batch_metrics(progress))
                    on_batch(batches[-1])
            if not any(active) or any(one.exception() for one in everyone):
                break
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        _stop(everyone)
        return batches
    errors = [error for one in everyone if (error := one.exception()) is not None]
    if errors:
        _stop(everyone)
        raise QuiverError(
            f"{_cause(errors[0])}; run the pipeline again to continue from its checkpoint"
        )
    return batches


def ignore_batch(batch: BatchMetrics) -> None:
    """An ``on_batch`` that reports nothing."""


def _stop(queries: Iterable[StreamingQuery]) -> None:
    for one in queries:
        one.stop()


def _print(one: BatchMetrics) -> None:
    print(
        f"{one.rows:,} rows, {one.rows_per_second:,.0f} rows/s, lag {one.lag:,}, "
        f"batch {one.seconds:.2f} s",
        file=sys.stderr,
        flush=True,
    )


def _batch_metrics(progress: Any) -> BatchMetrics:
    seconds = progress["durationMs"]["triggerExecution"] / 1000
    rows = progress["numInputRows"]
    lag = sum(_lag(source["endOffset"], source["latestOffset"]) for source in progress["sources"])
    return BatchMetrics(time.time(), rows, rows / max(seconds, 0.001), lag, seconds, _bad(progress))


def _bad(progress: Any) -> int:
    observed = progress["observedMetrics"] or {}
    return int(observed[BAD_RECORDS]["count"]) if BAD_RECORDS in observed else 0


def _lag(end: Any, latest: Any) -> int:
    """How many messages there are beyond the batch, as far as the source has told."""
    end, latest = (
        msgspec.json.decode(given) if isinstance(given, str) else given or {}
        for given in (end, latest)
    )
    return sum(
        max(0, offset - end.get(topic, {}).get(partition, 0))
        for topic, partitions in latest.items()
        for partition, offset in partitions.items()
    )


def _cause(error: StreamingQueryException) -> str:
    """The one line of a long trace that says what was wrong."""
    lines = [line.strip() for line in str(error).splitlines()]
    ours = [line for line in lines if line.startswith("quiver.errors.")]
    return ours[-1].partition(": ")[2] if ours else lines[0]
