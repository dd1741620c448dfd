"""A table of plain Parquet files in Hive folders, which any engine reads.

A commit is decided in a small file before anything moves, and moving is finished by whoever comes
next: the files of a batch appear once, though one after the other. What tasks write lies in a hidden
folder that engines pass over.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections import defaultdict
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from quiver.spark.tables.files import WrittenFile
from quiver.spark.tables.table import SMALL_BYTES, SMALL_COUNT


class _Moves(msgspec.Struct, frozen=True):
    """Files to move into the table, and files to remove from it when that is done."""

    batch: int
    moves: list[tuple[str, str]]
    removals: list[str] = []


class ParquetFolder:
    keeps_values = False

    def __init__(self, path: str) -> None:
        self._path = path

    def root(self) -> str:
        return os.path.join(self._path, "_staging")

    def commit(self, query: str, batch: int, files: list[WrittenFile], schema: pa.Schema) -> None:
        log = self._log(query)
        decided = _read(log)
        if decided is not None and decided.batch >= batch:
            self._carry_out(decided)
            return
        moves = [
            (file.path, os.path.join(self._path, file.folder, os.path.basename(file.path)))
            for file in files
        ]
        decision = _Moves(batch, moves)
        _write(log, decision)
        self._carry_out(decision)

    def files(self) -> list[str]:
        return sorted(
            str(file)
            for file in Path(self._path).rglob("*.parquet")
            if not any(part.startswith("_") for part in file.relative_to(self._path).parts)
        )

    def compact(self) -> int:
        log = self._log("compaction")
        if (unfinished := _read(log)) is not None:
            self._carry_out(unfinished)
        before = len(self.files())
        small: dict[str, list[str]] = defaultdict(list)
        for file in self.files():
            if os.path.getsize(file) < SMALL_BYTES:
                small[os.path.dirname(file)].append(file)
        for folder, files in small.items():
            if len(files) >= SMALL_COUNT:
                self._join(log, folder, files)
        return before - len(self.files())

    def _join(self, log: str, folder: str, files: list[str]) -> None:
        name = f"part-{uuid.uuid4()}.parquet"
        joined = os.path.join(self.root(), name)
        os.makedirs(self.root(), exist_ok=True)
        with pq.ParquetWriter(joined, pq.read_schema(files[0]), compression="snappy") as writer:
            for file in files:
                writer.write_table(pq.ParquetFile(file).read())
        _sync(joined)
        decision = _Moves(0, [(joined, os.path.join(folder, name))], files)
        _write(log, decision)
        self._carry_out(decision)
        os.remove(log)

    def _carry_out(self, decided: _Moves) -> None:
        for source, target in decided.moves:
            if os.path.exists(source):
                os.makedirs(os.path.dirname(target), exist_ok=True)
                os.replace(source, target)
                _sync(os.path.dirname(target))
        for file in decided.removals:
            with contextlib.suppress(FileNotFoundError):
                os.remove(file)

    def _log(self, name: str) -> str:
        folder = os.path.join(self._path, "_quiver")
        os.makedirs(folder, exist_ok=True)
        return os.path.join(folder, f"{name}.json")


def _read(path: str) -> _Moves | None:
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(), type=_Moves)
    except FileNotFoundError:
        return None


def _write(path: str, moves: _Moves) -> None:
    """Replace the file's content, as a whole and durably."""
    with open(f"{path}.new", "wb") as file:
        file.write(msgspec.json.encode(moves))
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.new", path)
    _sync(os.path.dirname(path))


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
