"""The data source ``quiver``: ``spark.read.format("quiver")`` and its three siblings.

Objects of this class travel to other processes: they hold options, and no connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from quiver.errors import InvalidSetting
from quiver.spark.columns import spark_schema
from quiver.spark.options import read_options, state_options, write_options
from quiver.spark.read.batch_reader import BatchReader, FilteringBatchReader
from quiver.spark.read.state_reader import StateReader, state_schema
from quiver.spark.read.stream_reader import StreamReader
from quiver.spark.write.sink import BatchWriter, StreamWriter

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


class QuiverDataSource(DataSource):
    """Topics as tables, without filters pushed down."""

    @classmethod
    def name(cls) -> str:
        return "quiver"

    def schema(self) -> StructType:
        state = state_options(self.options)
        if state is not None:
            return state_schema(state.columns)
        return spark_schema(read_options(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        state = state_options(self.options)
        return self._topic_reader() if state is None else StateReader(state)

    def _topic_reader(self) -> DataSourceReader:
        return BatchReader(read_options(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        if state_options(self.options) is not None:
            raise InvalidSetting(
                "view=state is a snapshot: read it with spark.read, not with readStream"
            )
        return StreamReader(read_options(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise InvalidSetting('a topic can only be appended to: write with mode("append")')
        return BatchWriter(write_options(self.options), schema)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        # In complete mode Spark asks to overwrite; to a topic, as to Kafka, each result is added.
        return StreamWriter(write_options(self.options), schema)


class FilteringDataSource(QuiverDataSource):
    """The same, with filters pushed down: Spark refuses this where its setting forbids it."""

    def _topic_reader(self) -> DataSourceReader:
        return FilteringBatchReader(read_options(self.options))


def register(spark: SparkSession) -> None:
    """Make ``format("quiver")`` known to a session.

    Filters are pushed down unless the session's setting says ``false`` in so many words.
    """
    allowed = spark.conf.get(PUSHDOWN, "true") != "false"
    if allowed:
        spark.conf.set(PUSHDOWN, "true")
    with _active(spark):  # Spark looks for a source of this name in the active session
        spark.dataSource.register(FilteringDataSource if allowed else QuiverDataSource)


@contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Have Spark take this session for the active one, and then the one that was it before."""
    java_session = getattr(spark, "_jsparkSession", None)
    if java_session is None:  # a session of Spark Connect, whose server has but one
        yield
        return
    before = java_session.getActiveSession()
    java_session.setActiveSession(java_session)
    try:
        yield
    finally:
        if before.isDefined():
            java_session.setActiveSession(before.get())
