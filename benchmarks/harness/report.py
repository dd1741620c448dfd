"""The result of a run as a table on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from benchmarks.harness.machine import Machine
from benchmarks.harness.row import Row
from benchmarks.harness.text import facts, ratio_of, target_of, value_of, yardstick_of


def print_rows(console: Console, machine: Machine, rows: list[Row]) -> None:
    """One table of all rows; notes, which are long, go beneath it."""
    table = Table(title="Quiver benchmarks", title_justify="left", caption=facts(machine))
    for heading in ("benchmark", "value", "yardstick", "ratio", "target", ""):
        right = heading in {"value", "yardstick", "ratio"}
        table.add_column(heading, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*_cells(row))
    console.print(table)
    for row in rows:
        if row.note:
            console.print(f"{row.name}: {row.note}", style="dim", highlight=False)


def _cells(row: Row) -> tuple[str, ...]:
    yardstick = yardstick_of(row)
    return (
        row.name,
        value_of(row),
        f"{yardstick}\n[dim]{row.yardstick_name}[/]" if row.yardstick_name else yardstick,
        ratio_of(row),
        target_of(row),
        {None: "", True: "[green]ok[/]", False: "[bold red]miss[/]"}[row.ok],
    )
