"""The result of a run: a table for people, one JSON file for each set of benchmarks, and a page."""

from __future__ import annotations

import os

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.harness.machine import Machine
from benchmarks.harness.row import Row


def print_rows(console: Console, machine: Machine, rows: list[Row]) -> None:
    """One table of all rows; notes, which are long, go beneath it."""
    table = Table(title="Quiver benchmarks", title_justify="left", caption=_facts(machine))
    for heading in ("benchmark", "value", "yardstick", "ratio", "target", ""):
        right = heading in {"value", "yardstick", "ratio"}
        table.add_column(heading, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*_cells(row))
    console.print(table)
    for row in rows:
        if row.note:
            console.print(f"{row.name}: {row.note}", style="dim", highlight=False)


def write_rows(folder: str, name: str, machine: Machine, rows: list[Row], quick: bool) -> None:
    """Replace ``<name>.json`` in ``folder``."""
    os.makedirs(folder, exist_ok=True)
    result = {
        "benchmark": name,
        "quick": quick,
        "machine": machine,
        "rows": [msgspec.to_builtins(row) | {"ok": row.ok} for row in rows],
    }
    with open(f"{folder}/{name}.json", "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")


def write_page(path: str, machine: Machine, sets: dict[str, list[Row]]) -> None:
    """All rows as Markdown, a table for each set."""
    parts = [f"# Benchmarks\n\nWritten by `make bench`. {_facts(machine)}.\n"]
    for name, rows in sets.items():
        lines = [" | ".join(_plain_cells(row)) for row in rows]
        notes = [f"- {row.name}: {row.note}" for row in rows if row.note]
        parts.append(
            f"## {name}\n\n| benchmark | value | beside it | ratio | target | |\n"
            "| --- | ---: | ---: | ---: | --- | --- |\n"
            + "".join(f"| {line} |\n" for line in lines)
        )
        if notes:
            parts.append("\n".join(dict.fromkeys(notes)) + "\n")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(parts))


def _plain_cells(row: Row) -> tuple[str, ...]:
    beside = ""
    if row.yardstick is not None:
        beside = f"{_number(row.yardstick)} {row.unit}, {row.yardstick_name}"
    return (
        row.name,
        f"{_number(row.value)} {row.unit}",
        beside,
        "" if row.ratio is None else f"{row.ratio:.2f}",
        _target(row),
        {None: "", True: "ok", False: "**miss**"}[row.ok],
    )


def _cells(row: Row) -> tuple[str, ...]:
    yardstick = "" if row.yardstick is None else f"{_number(row.yardstick)} {row.unit}"
    verdict = {None: "", True: "[green]ok[/]", False: "[bold red]miss[/]"}[row.ok]
    return (
        row.name,
        f"{_number(row.value)} {row.unit}",
        f"{yardstick}\n[dim]{row.yardstick_name}[/]" if row.yardstick_name else yardstick,
        "" if row.ratio is None else f"{row.ratio:.2f}",
        _target(row),
        verdict,
    )


def _target(row: Row) -> str:
    if row.target is None:
        return ""
    sign = {"at least": "≥", "at most": "≤"}[row.target.is_]
    if row.target.of == "ratio":
        return f"{sign} {row.target.limit:.2f} x"
    return f"{sign} {_number(row.target.limit)} {row.unit}"


def _number(value: float) -> str:
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:,.2f}" if abs(value) >= 1 else f"{value:.3g}"


def _facts(machine: Machine) -> str:
    return (
        f"{machine.cores} cores, {machine.memory_gib} GiB, {machine.system}, "
        f"Python {machine.python}, pyarrow {machine.pyarrow}, uvloop {machine.uvloop}; "
        f"4 KB fdatasync {machine.fdatasync_ms:.3f} ms; load before {machine.load}"
    )
