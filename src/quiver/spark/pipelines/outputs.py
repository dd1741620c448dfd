"""Where pipelines write to: topics, and tables that other engines know."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from quiver.client import Client
from quiver.errors import TopicNotFound
from quiver.spark.pipelines.runner import PipelineSettings
from quiver.spark.tables.table import Table, open_table
from quiver.spark.tables.views import register_view, write_duckdb_view

_COMPACT_EVERY = 50


def require_topic(client: Client, topic: str) -> None:
    """Have the topic that is written to; one that is there already is taken as it is."""
    try:
        client.describe_topic(topic)
    except TopicNotFound:
        client.create_topic(topic, exist_ok=True)


def to_topic(rows: DataFrame, settings: PipelineSettings, topic: str) -> DataStreamWriter:
    return rows.writeStream.format("quiver").option("url", settings.url).option("topic", topic)


def to_table(
    rows: DataFrame,
    path: str,
    table_format: str,
    partition_by: tuple[str, ...] = (),
    *,
    has_bad: bool = True,
) -> DataStreamWriter:
    """Rows into a table, and bad records into the table ``{path}-bad``."""
    writer = (
        rows.writeStream.format("quiver-table")
        .option("path", path)
        .option("tableFormat", table_format)
        .option("partitionBy", ",".join(partition_by))
        .option("compactEvery", _COMPACT_EVERY)
    )
    return writer.option("badRecordsPath", f"{path}-bad") if has_bad else writer


def finished_table(
    spark: SparkSession,
    name: str,
    path: str,
    table_format: str,
    partition_by: tuple[str, ...] = (),
) -> Table:
    """Join small files, and make the table known to Spark's SQL and to DuckDB by its name."""
    table = open_table(table_format, path, partition_by)
    table.compact()
    if table.files():
        register_view(spark, table, path, name)
        write_duckdb_view(table, path, name)
    return table
