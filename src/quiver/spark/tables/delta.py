"""A Delta table: each batch is one commit of its log, with the query and batch in it."""

from __future__ import annotations

import os
import time

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from quiver.spark.tables.files import WrittenFile


class DeltaFolder:
    keeps_values = False

    def __init__(self, path: str, partition_by: tuple[str, ...]) -> None:
        self._path = path
        self._partition_by = list(partition_by)

    def root(self) -> str:
        return self._path

    def commit(self, query: str, batch: int, files: list[WrittenFile], schema: pa.Schema) -> None:
        table = self._table()
        if table is not None:
            last = table.transaction_version(query)
            if last is not None and last >= batch:
                return
        actions = [self._action(file) for file in files]
        added: list[AddAction | RemoveAction] = [*actions]
        properties = CommitProperties(app_transactions=[Transaction(query, batch)])
        if table is None:
            os.makedirs(self._path, exist_ok=True)
            create_table_with_add_actions(
                self._path,
                Schema.from_arrow(schema),
                actions,
                mode="append",
                partition_by=self._partition_by,
                commit_properties=properties,
            )
        else:
            table.create_write_transaction(
                added, "append", schema, self._partition_by, commit_properties=properties
            )

    def files(self) -> list[str]:
        table = self._table()
        return [] if table is None else sorted(table.file_uris())

    def compact(self) -> int:
        table = self._table()
        if table is None:
            return 0
        metrics = table.optimize.compact()
        return int(metrics["numFilesRemoved"] - metrics["numFilesAdded"])

    def _table(self) -> DeltaTable | None:
        return DeltaTable(self._path) if DeltaTable.is_deltatable(self._path) else None

    def _action(self, file: WrittenFile) -> AddAction:
        return AddAction(
            path=os.path.relpath(file.path, self._path),
            size=file.bytes,
            partition_values=file.values,
            modification_time=time.time_ns() // 1_000_000,
            data_change=True,
            stats=f'{{"numRecords": {file.rows}}}',
        )
