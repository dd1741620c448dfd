"""The yardstick that nobody should need: a source that yields its rows as Python tuples."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from quiver.spark.columns import DEFAULT_COLUMNS, spark_schema
from quiver.spark.connections import Nodes

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class TupleReader(DataSourceReader):
    def __init__(self, url: str, topic: str, rows: int) -> None:
        self._url, self._topic, self._rows = url, topic, rows

    def partitions(self):
        return [InputPartition(0), InputPartition(1)]

    def read(self, partition):
        topic, place = self._topic, partition.value
        client = Nodes(url=self._url).client()
        with client.read(topic, partition=place, start=0, end=self._rows) as reader:
            for one in reader.messages():
                moment = _EPOCH + timedelta(microseconds=one.timestamp_us)
                yield (one.key, one.payload, topic, place, one.offset, moment, None)


class TupleSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "tuples"

    def schema(self):
        return spark_schema(DEFAULT_COLUMNS)

    def reader(self, schema):
        options = self.options
        return TupleReader(options["url"], options["topic"], int(options["rows"]))
