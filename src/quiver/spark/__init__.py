"""Quiver for Spark: every topic a table, read and written through PySpark's data source API."""

from quiver.spark.source import QuiverDataSource, register

__all__ = ["QuiverDataSource", "register"]
