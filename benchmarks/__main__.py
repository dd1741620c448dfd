"""Runs benchmarks: all of them, or the sets that are named.

A full run, in contrast to a quick one, is kept: its sets replace theirs in ``benchmarks/results``, and
the pages that are made from them are written anew.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import benchmarks
from benchmarks.harness.bench import Bench, scratch_folder
from benchmarks.harness.kept import PAGES, RESULTS
from benchmarks.harness.machine import this_machine
from benchmarks.harness.page import results_page
from benchmarks.harness.report import print_rows
from benchmarks.harness.result import SetResult, load_all, save, this_minute
from benchmarks.harness.row import Row


def set_names() -> list[str]:
    """The names of all sets of benchmarks."""
    return sorted(
        module.name
        for module in pkgutil.iter_modules(benchmarks.__path__)
        if module.name not in {"harness", "__main__"}
    )


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Sets to run; all if left out.")] = None,
    quick: Annotated[bool, typer.Option(help="A short run, to see that everything works.")] = False,
    results: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the results. Default: benchmarks/results; for a quick run, none."
        ),
    ] = None,
) -> None:
    console = Console(width=None if sys.stdout.isatty() else 120)
    chosen = names or set_names()
    unknown = set(chosen) - set(set_names())
    if unknown:
        raise typer.BadParameter(f"{', '.join(unknown)}: choose from {', '.join(set_names())}")
    folder = results or (None if quick else RESULTS)
    if quick and folder is not None and folder.resolve() == RESULTS:
        raise typer.BadParameter("a quick run is not kept in the tree: choose another folder")
    with scratch_folder() as scratch:
        bench = Bench(this_machine(scratch), quick)
    rows: list[Row] = []
    for name in chosen:
        rows += (measured := _run(console, bench, name))
        if folder is not None:
            _keep(console, folder, bench, name, measured)
    print_rows(console, bench.machine, rows)
    if folder is not None:
        _write_pages(console, folder, chosen)


def _run(console: Console, bench: Bench, name: str) -> list[Row]:
    rows: list[Row] = []
    for benchmark in importlib.import_module(f"benchmarks.{name}").BENCHMARKS:
        with console.status(f"{name}: {benchmark.__name__.replace('_', ' ')}"):
            rows += benchmark(bench)
    return rows


def _keep(console: Console, folder: Path, bench: Bench, name: str, rows: list[Row]) -> None:
    """Replace the set's result. Rows that it had and has no longer are named."""
    result = SetResult(
        benchmark=name, date=this_minute(), quick=bench.quick, machine=bench.machine, rows=rows
    )
    before = save(str(folder), result)
    for row in [] if before is None else before.missing_from(result):
        console.print(f"{name}: not measured this time: {row.name} {row.yardstick_name}".rstrip())


def _write_pages(console: Console, folder: Path, chosen: list[str]) -> None:
    kept = load_all(str(folder))
    if folder.resolve() == RESULTS:
        for path, text in PAGES.items():
            path.write_text(text(), encoding="utf-8")
    else:
        (folder / "README.md").write_text(results_page(kept), encoding="utf-8")
    others = [f"{one.benchmark} ({one.date})" for one in kept if one.benchmark not in chosen]
    if others:
        console.print(f"Kept as they were measured before: {', '.join(others)}.")


if __name__ == "__main__":
    typer.run(main)
