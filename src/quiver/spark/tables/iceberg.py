"""An Iceberg table with its catalog beside it, in SQLite: each batch is one snapshot."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchTableError
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, EqualTo
from pyiceberg.table import Table

from quiver.spark.tables.files import WrittenFile
from quiver.spark.tables.table import SMALL_BYTES, SMALL_COUNT

NAME = "quiver.archive"
_BATCH = "quiver.batch."


class IcebergFolder:
    keeps_values = True

    def __init__(self, path: str, partition_by: tuple[str, ...]) -> None:
        self._path = path
        self._partition_by = partition_by

    def root(self) -> str:
        return os.path.join(self._path, "data")

    def commit(self, query: str, batch: int, files: list[WrittenFile], schema: pa.Schema) -> None:
        table = self._table() or self._create(schema)
        last = _last_batch(table, query)
        if files and (last is None or last < batch):
            table.add_files(
                [f"file://{file.path}" for file in files],
                snapshot_properties={_BATCH + query: str(batch)},
                check_duplicate_files=False,
            )

    def files(self) -> list[str]:
        table = self._table()
        if table is None:
            return []
        return sorted(task.file.file_path.removeprefix("file://") for task in _tasks(table))

    def compact(self) -> int:
        """Write the rows of a partition with many small files anew, in one snapshot each."""
        table = self._table()
        if table is None:
            return 0
        before = len(self.files())
        small: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
        for task in _tasks(table):
            small[tuple(task.file.partition)].append(task.file)
        for values, files in small.items():
            if len([file for file in files if file.file_size_in_bytes < SMALL_BYTES]) < SMALL_COUNT:
                continue
            where = _all_equal(dict(zip(self._partition_by, values, strict=True)))
            rows = pa.concat_tables(
                [pq.ParquetFile(file.file_path.removeprefix("file://")).read() for file in files]
            )
            table.overwrite(rows, overwrite_filter=where)
        return before - len(self.files())

    def table(self) -> Table:
        """The table itself, for whoever wants more of it."""
        return self._catalog().load_table(NAME)

    def _catalog(self) -> SqlCatalog:
        os.makedirs(self._path, exist_ok=True)
        return SqlCatalog(
            "quiver",
            uri=f"sqlite:///{self._path}/catalog.db",
            warehouse=f"file://{self._path}",
        )

    def _table(self) -> Table | None:
        try:
            return self.table()
        except NoSuchTableError:
            return None

    def _create(self, schema: pa.Schema) -> Table:
        catalog = self._catalog()
        with contextlib.suppress(NamespaceAlreadyExistsError):
            catalog.create_namespace("quiver")
        table = catalog.create_table(NAME, schema, location=f"file://{self._path}")
        with table.update_spec() as update:
            for name in self._partition_by:
                update.add_identity(name)
        return catalog.load_table(NAME)


def _all_equal(values: dict[str, Any]) -> BooleanExpression:
    """The condition that columns have these values."""
    equal: Any = EqualTo  # its signature is hidden by a decorator
    conditions = [equal(name, value) for name, value in values.items()]
    return (
        And(*conditions) if len(conditions) > 1 else conditions[0] if conditions else AlwaysTrue()
    )


def _tasks(table: Table) -> list[Any]:
    return list(table.scan().plan_files())


def _last_batch(table: Table, query: str) -> int | None:
    found = [
        int(snapshot.summary.additional_properties[_BATCH + query])
        for snapshot in table.snapshots()
        if snapshot.summary is not None and _BATCH + query in snapshot.summary.additional_properties
    ]
    return max(found, default=None)
