"""``logs``: many writers' lines as one table, with errors grouped by their shape.

Lines are JSON objects, logfmt or the common access log; a line that is none of them is a bad record.
Two messages have the same shape if they differ only in numbers, ids and quoted text.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from quiver.spark.tables.sink import RAW, REASON

PARTITION_BY = ("date",)
ERRORS = ("ERROR", "CRITICAL", "FATAL")
_ACCESS = r'^(\S+) \S+ (\S+) \[([^\]]+)\] "(\S+) (\S+)[^"]*" (\d{3}) (\d+|-)'
_PAIR = r'([A-Za-z_][\w.]*)=("[^"]*"|\S*)'


def parsed_lines(messages: DataFrame) -> DataFrame:
    """One row for each line: level, message, source, shape and the fields."""
    text = f.col("value").cast("string")
    lines = messages.withColumn("_text", text).withColumn("_kind", _kind())
    fields = (
        f.when(f.col("_kind") == "json", f.from_json("_text", "map<string,string>"))
        .when(f.col("_kind") == "access", _access_fields())
        .when(f.col("_kind") == "logfmt", _logfmt_fields())
    )
    known = lines.withColumn("fields", fields)
    status = f.col("fields")["status"].cast("int")
    by_status = f.when(status >= 500, "ERROR").when(status >= 400, "WARN")
    level = f.upper(f.coalesce(_field("level", "severity", "lvl"), by_status, f.lit("INFO")))
    message = f.coalesce(_field("message", "msg", "event", "error"), f.col("_text"))
    return (
        known.withColumn("level", f.when(f.col("_kind").isNotNull(), level))
        .withColumn("message", f.when(f.col("_kind").isNotNull(), message))
        .select(
            "topic",
            "partition",
            "offset",
            "timestamp",
            "key",
            f.col("_kind").alias("kind"),
            "level",
            f.coalesce(
                _field("service", "logger", "host", "app"), f.col("key").cast("string")
            ).alias("source"),
            "message",
            shape_of(f.col("message")).alias("shape"),
            "fields",
            f.date_format("timestamp", "yyyy-MM-dd").alias("date"),
            f.when(f.col("_kind").isNull(), f.col("value")).alias(RAW),
            f.when(f.col("_kind").isNull(), "not JSON, logfmt or an access log").alias(REASON),
        )
    )


def shape_of(message: Column) -> Column:
    """The message without what differs from one time to the next."""
    quoted = f.regexp_replace(message, r"""'[^']*'|"[^"]*\"""", "'…'")
    ids = f.regexp_replace(quoted, r"\b[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}\b", "…")
    return f.regexp_replace(ids, r"0x[0-9a-fA-F]+|\d+", "#")


def level_counts(lines: DataFrame, *, window: str = "1 minute") -> DataFrame:
    """Lines by window, source and level."""
    return lines.groupBy(f.window("timestamp", window), "source", "level").count()


def alerts(
    lines: DataFrame, *, window: str = "1 minute", watermark: str = "1 minute", least: int = 5
) -> DataFrame:
    """Messages for a topic of alerts: each shape of error that came so often in a window."""
    # All lines are grouped, errors by shape and the rest together: time goes on with every line,
    # and a filter in front would keep Spark from seeing it.
    is_error = f.col("level").isin(*ERRORS)
    grouped = (
        lines.withWatermark("timestamp", watermark)
        .groupBy(
            f.window("timestamp", window),
            f.when(is_error, f.col("shape")).otherwise("").alias("shape"),
        )
        .agg(
            f.count_if(is_error).alias("count"),
            f.first("message").alias("example"),
            f.slice(f.collect_set(f.when(is_error, f.col("source"))), 1, 10).alias("sources"),
        )
        .where(f.col("count") >= least)
    )
    value = f.to_json(
        f.struct(
            f.col("window.start").alias("start"),
            f.col("window.end").alias("end"),
            "shape",
            "count",
            "example",
            "sources",
        )
    )
    return grouped.select(f.col("shape").alias("key"), value.alias("value"))


def _kind() -> Column:
    text = f.col("_text")
    return (
        f.when(text.rlike(r"^\s*\{") & f.expr("try_parse_json(_text)").isNotNull(), "json")
        .when(text.rlike(_ACCESS), "access")
        .when(f.expr(r"size(regexp_extract_all(_text, '[A-Za-z_][\\w.]*=', 0))") >= 2, "logfmt")
    )


def _access_fields() -> Column:
    names = ("host", "user", "time", "method", "path", "status", "bytes")
    pairs = [
        part
        for place, name in enumerate(names, 1)
        for part in (f.lit(name), f.regexp_extract("_text", _ACCESS, place))
    ]
    return f.create_map(*pairs)


def _logfmt_fields() -> Column:
    names = f.regexp_extract_all("_text", f.lit(_PAIR), f.lit(1))
    values = f.regexp_extract_all("_text", f.lit(_PAIR), f.lit(2))
    bare = f.transform(values, lambda value: f.regexp_replace(value, '^"|"$', ""))
    return f.map_from_arrays(names, bare)


def _field(*names: str) -> Column:
    return f.coalesce(*(f.col("fields")[name] for name in names))
