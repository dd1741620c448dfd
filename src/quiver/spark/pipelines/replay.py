"""``replay``: rows of a table back into a topic, each key in its order, at a limited rate."""

from __future__ import annotations

import time
from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.window import Window

_ORDER = ("timestamp", "topic", "partition", "offset")


def in_key_order(rows: DataFrame, *, where: str | None = None) -> DataFrame:
    """Rows of an archive as messages, with their place in the order of the whole."""
    chosen = rows if where is None else rows.where(where)
    order = [name for name in _ORDER if name in rows.columns]
    value = f.col("value")
    if dict(rows.dtypes)["value"].startswith("struct"):
        value = f.to_json("value")
    columns = [f.col(name) for name in ("key", "headers") if name in rows.columns]
    place = f.row_number().over(Window.orderBy(*order)) - 1
    return chosen.select(*columns, value.alias("value"), place.alias("place"))


def replay(
    messages: DataFrame,
    *,
    url: str,
    topic: str,
    job: str,
    per_second: int,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Publish messages that ``in_key_order`` made, so many each second: how many there were.

    Each second's messages are one write that is done once: a replay that is started again under the
    same name goes on where it was.
    """
    messages = messages.persist()
    try:
        total = messages.count()
        for step in range(-(-total // per_second)):
            began = time.monotonic()
            first, end = step * per_second, min(total, (step + 1) * per_second)
            part = messages.where((f.col("place") >= first) & (f.col("place") < end))
            (
                part.coalesce(1)
                .sortWithinPartitions("place")
                .drop("place")
                .write.format("quiver")
                .option("url", url)
                .option("topic", topic)
                .option("txnAppId", f"replay.{job}")
                .option("txnVersion", step)
                .mode("append")
                .save()
            )
            on_progress(end, total)
            if end < total:
                sleep(max(0.0, 1.0 - (time.monotonic() - began)))
        return total
    finally:
        messages.unpersist()
