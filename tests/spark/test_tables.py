"""Commits of tables: once for each query and batch, through repetition and crashes; no Spark here."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quiver.errors import InvalidSetting
from quiver.spark.tables.files import FileSet, WrittenFile
from quiver.spark.tables.parquet import ParquetFolder
from quiver.spark.tables.table import Table, open_table

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("topic", pa.string()),
        pa.field("hour", pa.int32()),
    ]
)
BY = ("topic", "hour")
KINDS = ["delta", "iceberg", "parquet"]


def written(table: Table, ids: range) -> list[WrittenFile]:
    """What a task writes: rows of two partitions."""
    files = FileSet(table.root(), BY, keeps_values=table.keeps_values)
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [{"id": n, "at": moment, "topic": f"t{n % 2}", "hour": 7} for n in ids]
    files.add(pa.Table.from_pylist(rows, schema=SCHEMA))
    return files.finish()


def ids_in(table: Table) -> list[int]:
    return sorted(
        number
        for file in table.files()
        for number in pq.ParquetFile(file).read(["id"])["id"].to_pylist()
    )


@pytest.fixture(params=KINDS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return open_table(request.param, str(tmp_path / "table"), BY)


def test_files_belong_to_the_table_only_after_the_commit(table: Table) -> None:
    files = written(table, range(10))
    assert ids_in(table) == []
    table.commit("query", 0, files, SCHEMA)
    assert ids_in(table) == list(range(10))


def test_a_batch_that_comes_again_changes_nothing(table: Table) -> None:
    table.commit("query", 0, written(table, range(10)), SCHEMA)
    table.commit("query", 0, written(table, range(10)), SCHEMA)
    table.commit("query", 1, written(table, range(10, 12)), SCHEMA)
    table.commit("query", 0, written(table, range(10)), SCHEMA)
    table.commit("other", 0, written(table, range(12, 14)), SCHEMA)
    assert ids_in(table) == list(range(14))


def test_joining_small_files_keeps_every_row(table: Table) -> None:
    for batch in range(5):
        table.commit("query", batch, written(table, range(batch * 4, batch * 4 + 4)), SCHEMA)
    before = len(table.files())
    assert table.compact() > 0
    assert len(table.files()) < before
    assert ids_in(table) == list(range(20))
    table.commit("query", 4, written(table, range(16, 20)), SCHEMA)
    assert ids_in(table) == list(range(20))


def test_partition_values_are_in_the_folders(table: Table) -> None:
    table.commit("query", 0, written(table, range(4)), SCHEMA)
    folders = {"/".join(Path(file).parts[-3:-1]) for file in table.files()}
    assert folders == {"topic=t0/hour=7", "topic=t1/hour=7"}


def test_a_crash_while_files_move_is_finished_by_the_next_commit(tmp_path: Path) -> None:
    table = ParquetFolder(str(tmp_path / "table"))
    files = written(table, range(10))
    whole = ParquetFolder._carry_out

    def die_after_one(self, decided) -> None:
        whole(self, msgspec.structs.replace(decided, moves=decided.moves[:1]))
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ParquetFolder, "_carry_out", die_after_one)
        with pytest.raises(KeyboardInterrupt):
            table.commit("query", 0, files, SCHEMA)
    assert 0 < len(ids_in(table)) < 10
    table.commit("query", 0, written(table, range(9, -1, -1)), SCHEMA)
    assert ids_in(table) == list(range(10))


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="delta, iceberg, parquet"):
        open_table("csv", str(tmp_path), ())
