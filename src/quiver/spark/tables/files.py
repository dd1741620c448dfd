"""What a task of a table's sink does: writes its rows into Parquet files that no reader sees yet.

Rows are split by the values of the partition columns. Files carry names that nobody else uses, are
synced before the task ends, and belong to the table only once its commit names them.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_BUFFERED_BYTES = 32 << 20
"""Rows that are kept before they become a row group, over all files of a task."""
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


class WrittenFile(msgspec.Struct, frozen=True):
    """A Parquet file: where it was written, where it belongs, and what is in it."""

    path: str
    folder: str
    """Its folder in the table, such as ``topic=orders/date=2026-01-01``."""
    values: dict[str, str | None]
    rows: int
    bytes: int


class _OpenFile:
    def __init__(self, path: str, schema: pa.Schema) -> None:
        self.path = path
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._sink = open(path, "wb")  # noqa: SIM115 - closed by finish
        self._writer = pq.ParquetWriter(self._sink, schema, compression="snappy")
        self.rows = 0

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows)
        self.rows += len(rows)

    def finish(self) -> int:
        self._writer.close()
        self._sink.flush()
        os.fsync(self._sink.fileno())
        self._sink.close()
        return os.path.getsize(self.path)


class FileSet:
    """The files of one attempt of one task."""

    def __init__(self, root: str, partition_by: tuple[str, ...], *, keeps_values: bool) -> None:
        self._root = root
        self._partition_by = partition_by
        self._keeps_values = keeps_values
        self._buffers: dict[tuple[Any, ...], list[pa.Table]] = {}
        self._buffered = 0
        self._open: dict[tuple[Any, ...], _OpenFile] = {}

    def add(self, rows: pa.Table) -> None:
        for values, some in self._split(rows):
            self._buffers.setdefault(values, []).append(some)
            self._buffered += some.nbytes
        if self._buffered >= _BUFFERED_BYTES:
            self._flush()

    def finish(self) -> list[WrittenFile]:
        self._flush()
        return [
            WrittenFile(
                file.path,
                self._folder(values),
                {
                    name: None if value is None else str(value)
                    for name, value in zip(self._partition_by, values, strict=True)
                },
                file.rows,
                file.finish(),
            )
            for values, file in self._open.items()
        ]

    def _split(self, rows: pa.Table) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
        if not self._partition_by:
            yield (), rows
            return
        keys = rows.select(self._partition_by)
        groups = keys.group_by(list(self._partition_by)).aggregate([]).to_pylist()
        for group in groups:
            some = rows
            if len(groups) > 1:
                for name, value in group.items():
                    column = some.column(name)
                    same = pc.is_null(column) if value is None else pc.equal(column, value)
                    some = some.filter(same)
            if not self._keeps_values:
                some = some.drop_columns(list(self._partition_by))
            yield tuple(group[name] for name in self._partition_by), some

    def _flush(self) -> None:
        for values, parts in self._buffers.items():
            whole = pa.concat_tables(parts)
            file = self._open.get(values)
            if file is None:
                path = os.path.join(
                    self._root, self._folder(values), f"part-{uuid.uuid4()}.parquet"
                )
                file = self._open[values] = _OpenFile(path, whole.schema)
            file.write(whole)
        self._buffers, self._buffered = {}, 0

    def _folder(self, values: tuple[Any, ...]) -> str:
        return "/".join(
            f"{name}={NO_VALUE if value is None else quote(str(value), safe=' ._-:')}"
            for name, value in zip(self._partition_by, values, strict=True)
        )


def remove_files(files: Iterable[WrittenFile]) -> None:
    """Remove files that no commit names."""
    for file in files:
        if os.path.exists(file.path):
            os.remove(file.path)
