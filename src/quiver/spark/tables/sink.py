"""The data source ``quiver-table``: a sink that commits each batch to a table exactly once.

Rows with a value in the column ``reason`` are bad records: they go to a second table, with the reason, and
are never dropped.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from quiver.errors import InvalidSetting
from quiver.spark.tables.files import FileSet, WrittenFile, remove_files
from quiver.spark.tables.table import FORMATS, open_table
from quiver.spark.write.sink import query_and_batch

REASON, RAW = "reason", "raw"
BAD_COLUMNS = ("topic", "partition", "offset", "timestamp", "key", RAW, REASON)
Messages = list[WriterCommitMessage | None]


class TableOptions(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    format: str = "parquet"
    partition_by: tuple[str, ...] = ()
    bad_path: str | None = None
    compact_every: int = 0
    """Join small files after so many batches; 0 means never."""


class Written(WriterCommitMessage):
    def __init__(self, query: str, good: list[WrittenFile], bad: list[WrittenFile]) -> None:
        self.query, self.good, self.bad = query, good, bad


class _TableWriterBase:
    def __init__(self, options: TableOptions, schema: StructType) -> None:
        self.options = options
        self._schema = to_arrow_schema(schema, timezone="UTC")
        missing = set(options.partition_by) - set(self._schema.names)
        if missing:
            raise InvalidSetting(f"partitionBy names {min(missing)!r}, which the rows do not have")
        self._table = open_table(options.format, options.path, options.partition_by)
        self._bad_table = (
            None if options.bad_path is None else open_table(options.format, options.bad_path, ())
        )

    def _write_files(self, rows: Iterator[pa.RecordBatch], query: str) -> Written:
        options, bad_table = self.options, self._bad_table
        good = FileSet(
            self._table.root(), options.partition_by, keeps_values=self._table.keeps_values
        )
        bad = None if bad_table is None else FileSet(bad_table.root(), (), keeps_values=False)
        for batch in rows:
            table = pa.Table.from_batches([batch]).cast(self._schema)
            if bad is not None:
                is_bad = pc.is_valid(table.column(REASON))
                if pc.any(is_bad).as_py():
                    bad.add(table.filter(is_bad).select(BAD_COLUMNS))
                table = table.filter(pc.invert(is_bad)).drop_columns([RAW, REASON])
            if len(table):
                good.add(table)
        return Written(query, good.finish(), [] if bad is None else bad.finish())

    def _commit(self, messages: Messages, batch: int) -> None:
        written = [message for message in messages if isinstance(message, Written)]
        if not written:
            return
        query = written[0].query
        bad = [file for message in written for file in message.bad]
        if self._bad_table is not None and bad:
            names = list(BAD_COLUMNS)
            schema = pa.schema([self._schema.field(name) for name in names])
            self._bad_table.commit(query, batch, bad, schema)
        dropped = (RAW, REASON) if self._bad_table is not None else ()
        schema = pa.schema([field for field in self._schema if field.name not in dropped])
        good = [file for message in written for file in message.good]
        if good:
            self._table.commit(query, batch, good, schema)
        every = self.options.compact_every
        if every and batch % every == every - 1:
            self._table.compact()

    def _abort(self, messages: Messages) -> None:
        for message in messages:
            if isinstance(message, Written):
                remove_files([*message.good, *message.bad])


class TableBatchWriter(_TableWriterBase, DataSourceArrowWriter):
    def __init__(self, options: TableOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._query = str(uuid.uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._write_files(iterator, self._query)

    def commit(self, messages: Messages) -> None:
        self._commit(messages, 0)

    def abort(self, messages: Messages) -> None:
        self._abort(messages)


class TableStreamWriter(_TableWriterBase, DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        query, _ = query_and_batch(TaskContext.get())
        return self._write_files(iterator, query)

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
        self._commit(messages, batchId)

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        self._abort(messages)


class TableDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "quiver-table"

    def writer(self, schema: StructType, overwrite: bool) -> TableBatchWriter:
        if overwrite:
            raise InvalidSetting('a table can only be appended to: write with mode("append")')
        return TableBatchWriter(table_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TableStreamWriter:  # noqa: N802
        if overwrite:
            raise InvalidSetting('a table can only be appended to: use outputMode("append")')
        return TableStreamWriter(table_options(self.options), schema)


def table_options(given: Mapping[str, str]) -> TableOptions:
    options = {name.lower(): value for name, value in given.items()}
    if "path" not in options:
        raise InvalidSetting("the option path is missing: it is the folder of the table")
    kind = options.get("tableformat", "parquet")
    if kind not in FORMATS:
        raise InvalidSetting(f"tableFormat must be {', '.join(FORMATS)}, not {kind!r}")
    names = tuple(name.strip() for name in options.get("partitionby", "").split(",") if name)
    return TableOptions(
        path=options["path"],
        format=kind,
        partition_by=names,
        bad_path=options.get("badrecordspath"),
        compact_every=int(options.get("compactevery", "0")),
    )


def register_tables(spark: SparkSession) -> None:
    spark.dataSource.register(TableDataSource)
