"""A view over a table's files, for Spark SQL and for DuckDB."""

from __future__ import annotations

import os

from pyspark.sql import DataFrame, SparkSession

from quiver.errors import InvalidSetting
from quiver.spark.tables.table import Table


def register_view(spark: SparkSession, table: Table, path: str, name: str) -> DataFrame:
    """The table's rows; ``spark.sql`` knows them by the name from now on."""
    files = table.files()
    if not files:
        raise InvalidSetting(f"there is no table at {path}, or it is empty")
    frame = spark.read.option("basePath", os.path.abspath(path)).parquet(*files)
    frame.createOrReplaceTempView(name)
    return frame


def write_duckdb_view(table: Table, path: str, name: str) -> str:
    """A file with the SQL that makes the view in DuckDB; its path."""
    target = os.path.join(path, "duckdb.sql")
    files = ", ".join("'" + file.replace("'", "''") + "'" for file in table.files())
    with open(target, "w") as file:
        file.write(
            f'CREATE OR REPLACE VIEW "{name}" AS\n'
            f"SELECT * FROM read_parquet([{files}], hive_partitioning = true);\n"
        )
    return target
