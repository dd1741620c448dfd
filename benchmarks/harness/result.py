"""What a set of benchmarks measured, when and where: one JSON file for each set, kept in the tree.

A run replaces the files of the sets that it ran and no others, so every file has its own date. Keys
keep their order and numbers have seven digits: a change shows as a diff.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime

import msgspec

from benchmarks.harness.machine import Machine
from benchmarks.harness.row import Row


class SetResult(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one set."""

    benchmark: str
    """The name of the set."""
    date: str
    """When it ended, in UTC, to the minute."""
    quick: bool
    """A short run, to see that everything works: its numbers mean nothing."""
    machine: Machine
    rows: list[Row]

    def missing_from(self, later: SetResult) -> list[Row]:
        """The rows that ``later`` does not have: it could not measure them, or they are gone."""
        measured = {_identity(row) for row in later.rows}
        return [row for row in self.rows if _identity(row) not in measured]


def this_minute() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M")


def save(folder: str, result: SetResult) -> SetResult | None:
    """Replace the set's file in ``folder``; return what it held before."""
    os.makedirs(folder, exist_ok=True)
    path = f"{folder}/{result.benchmark}.json"
    before = _load(path) if os.path.exists(path) else None
    document = msgspec.to_builtins(result)
    document["rows"] = [_rounded(msgspec.to_builtins(row)) | {"ok": row.ok} for row in result.rows]
    with open(path, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
    return before


def load_all(folder: str) -> list[SetResult]:
    """Every set that is kept in ``folder``, by name."""
    names = sorted(name for name in os.listdir(folder) if name.endswith(".json"))
    return [_load(f"{folder}/{name}") for name in names]


def _load(path: str) -> SetResult:
    with open(path, "rb") as file:
        return msgspec.json.decode(file.read(), type=SetResult)


def _identity(row: Row) -> tuple[str, str]:
    return row.name, row.yardstick_name


def _rounded(row: dict[str, object]) -> dict[str, object]:
    return {
        key: float(f"{value:.7g}") if isinstance(value, float) else value
        for key, value in row.items()
    }
