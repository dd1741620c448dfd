"""The interface of the three kinds of table, and the lookup by format."""

from __future__ import annotations

import os
from typing import Protocol

import pyarrow as pa

from quiver.errors import InvalidSetting
from quiver.spark.tables.files import WrittenFile

FORMATS = ("delta", "iceberg", "parquet")
SMALL_BYTES = 32 << 20
"""Files below this size are joined by ``compact``."""
SMALL_COUNT = 4
"""From so many small files of a partition on."""


class Table(Protocol):
    """A folder of Parquet files, and the commits that say which of them belong to it."""

    keeps_values: bool
    """Whether the files have the partition columns in them too."""

    def root(self) -> str:
        """Where tasks write their files."""

    def commit(self, query: str, batch: int, files: list[WrittenFile], schema: pa.Schema) -> None:
        """Add the files, once: the same query and batch a second time change nothing."""

    def files(self) -> list[str]:
        """The files that belong to the table now."""

    def compact(self) -> int:
        """Join small files; how many there are fewer."""


def open_table(kind: str, path: str, partition_by: tuple[str, ...]) -> Table:
    """The table at this path, whether it is there already or not."""
    path = os.path.abspath(path)
    if kind == "delta":
        from quiver.spark.tables.delta import DeltaFolder  # noqa: PLC0415 - each needs its package

        return DeltaFolder(path, partition_by)
    if kind == "iceberg":
        from quiver.spark.tables.iceberg import IcebergFolder  # noqa: PLC0415

        return IcebergFolder(path, partition_by)
    if kind == "parquet":
        from quiver.spark.tables.parquet import ParquetFolder  # noqa: PLC0415

        return ParquetFolder(path)
    raise InvalidSetting(f"the table format must be {', '.join(FORMATS)}, not {kind!r}")
