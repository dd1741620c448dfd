"""Runs benchmarks: all of them, or the sets that are named."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from typing import Annotated

import typer
from rich.console import Console

import benchmarks
from benchmarks.harness.bench import Bench, scratch_folder
from benchmarks.harness.machine import this_machine
from benchmarks.harness.report import print_rows, write_page, write_rows
from benchmarks.harness.row import Row

RESULTS = os.path.join(os.path.dirname(__file__), "results")


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
        str | None,
        typer.Option(help="Folder for the JSON files. A quick run writes none unless told where."),
    ] = None,
    page: Annotated[
        str | None, typer.Option(help="Markdown file for all rows of this run.")
    ] = None,
) -> None:
    console = Console(width=None if sys.stdout.isatty() else 120)
    chosen = names or set_names()
    unknown = set(chosen) - set(set_names())
    if unknown:
        raise typer.BadParameter(f"{', '.join(unknown)}: choose from {', '.join(set_names())}")
    with scratch_folder() as folder:
        bench = Bench(this_machine(folder), quick)
    folder_of_results = results or (None if quick else RESULTS)
    sets: dict[str, list[Row]] = {}
    for name in chosen:
        rows: list[Row] = []
        for benchmark in importlib.import_module(f"benchmarks.{name}").BENCHMARKS:
            with console.status(f"{name}: {benchmark.__name__.replace('_', ' ')}"):
                rows += benchmark(bench)
        if folder_of_results is not None:
            write_rows(folder_of_results, name, bench.machine, rows, quick)
        sets[name] = rows
    print_rows(console, bench.machine, [row for rows in sets.values() for row in rows])
    if page is not None:
        write_page(page, bench.machine, sets)


if __name__ == "__main__":
    typer.run(main)
