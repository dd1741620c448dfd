"""How rows and machines are written, on a terminal and in Markdown."""

from __future__ import annotations

from benchmarks.harness.machine import Machine
from benchmarks.harness.row import Row


def value_of(row: Row) -> str:
    return f"{number(row.value)} {row.unit}"


def yardstick_of(row: Row) -> str:
    return "" if row.yardstick is None else f"{number(row.yardstick)} {row.unit}"


def ratio_of(row: Row) -> str:
    return "" if row.ratio is None else f"{row.ratio:.2f}"


def target_of(row: Row) -> str:
    if row.target is None:
        return ""
    sign = {"at least": "≥", "at most": "≤"}[row.target.is_]
    if row.target.of == "ratio":
        return f"{sign} {row.target.limit:.2f} x"
    return f"{sign} {number(row.target.limit)} {row.unit}"


def number(value: float) -> str:
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:,.2f}" if abs(value) >= 1 else f"{value:.3g}"


def facts(machine: Machine) -> str:
    """What the figures depend on."""
    return (
        f"{hardware(machine)}, Python {machine.python}, pyarrow {machine.pyarrow}, "
        f"uvloop {machine.uvloop}; 4 KB fdatasync {machine.fdatasync_ms:.3f} ms; "
        f"load before {machine.load}"
    )


def hardware(machine: Machine) -> str:
    return f"{machine.cores} cores, {machine.memory_gib} GiB, {machine.system} {machine.kernel}"
