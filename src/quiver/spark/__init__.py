"""Quiver for Spark: every topic a table, read and written through PySpark's data source API."""

try:
    import pyspark  # noqa: F401 - only to see that it is there
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "Quiver for Spark needs PySpark: pip install 'quivermq[spark]'", name="pyspark"
    ) from error

from quiver.spark.source import QuiverDataSource, register

__all__ = ["QuiverDataSource", "register"]
