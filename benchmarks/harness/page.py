"""The results that are kept, as Markdown: a page of all rows, and the table of a few in the README.

Both are made from the JSON files alone. Where a set was measured on another day or machine than the
rest, its section says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.harness.result import SetResult
from benchmarks.harness.row import Row
from benchmarks.harness.text import facts, hardware, ratio_of, target_of, value_of, yardstick_of

BEGIN = "<!-- figures: written by make bench -->"
END = "<!-- end of figures -->"

FIGURES = (
    ("send 1 KB one by one, one process, fsync", "Redis XADD, appendfsync always"),
    (
        "consume and ack 1 KB one by one, blocking client, fsync",
        "RabbitMQ quorum queue, acks one by one",
    ),
    ("publish until a worker has it, 500/s, fsync, p50", "Redis Streams always"),
    ("publish until a worker has it, 500/s, fsync, p99", "Redis Streams always"),
    ("publish 1 KB, blocking client", "Redis XADD, appendfsync always"),
    ("send 1 KB one by one, three replicas, acks=quorum, fsync", "one node, fsync"),
    ("longest pause of publishing after SIGKILL of the leader, p99", ""),
    ("POST one 1 KB message, fsync, 64 connections", "bare Starlette"),
    ("Spark batch read into noop", "spark.read.parquet"),
    ("Spark stream write, exactly once", ""),
    ("quiver --help", "Python alone"),
    ("start of a node, until it is ready", ""),
    ("memory of an idle node", ""),
)
"""The rows that the README shows, by name and yardstick: also where Quiver is behind."""

_HEAD = """\
# Benchmarks: what was measured last

Written by `make bench`. [The benchmarks](../../docs/benchmarks.md) says how to read it. Each section has its
own date, because a run may be of some sections only; the JSON file beside this page has the same rows.
"""

_QUICK = " A quick run: the numbers mean nothing."


def results_page(results: Iterable[SetResult]) -> str:
    """All rows, a table for each set."""
    return "\n".join([_HEAD, *map(_section, results)])


def with_figures(readme: str, results: Sequence[SetResult]) -> str:
    """The README with a table of these results between its marks."""
    before, _begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, f"the README has no place for figures: {BEGIN} … {END}"
    return f"{before}{BEGIN}\n{_figures(results)}{END}{after}"


def _section(result: SetResult) -> str:
    lines = [
        f"## {result.benchmark}\n",
        f"{result.date} UTC. {facts(result.machine)}.{_QUICK if result.quick else ''}\n",
        "| benchmark | value | beside it | ratio | target | |",
        "| --- | ---: | ---: | ---: | --- | --- |",
        *(_line(_cells(row)) for row in result.rows),
        "",
    ]
    notes = dict.fromkeys(f"- {row.name}: {row.note}" for row in result.rows if row.note)
    return "\n".join([*lines, *notes, ""] if notes else lines)


def _cells(row: Row) -> tuple[str, ...]:
    verdict = {None: "", True: "ok", False: "**miss**"}[row.ok]
    return row.name, value_of(row), _beside(row), ratio_of(row), target_of(row), verdict


def _figures(results: Sequence[SetResult]) -> str:
    newest_last = sorted(results, key=lambda result: result.date)
    measured = {
        (row.name, row.yardstick_name): (result, row)
        for result in newest_last
        for row in result.rows
    }
    shown = [measured[figure] for figure in FIGURES if figure in measured]
    if not shown:
        return "\nNothing was measured yet: `make bench`.\n\n"
    days = sorted({result.date[:10] for result, _ in shown})
    machines = dict.fromkeys(hardware(result.machine) for result, _ in shown)
    days_text = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    lines = [
        "",
        f"On {'; '.join(machines)}; servers and clients share them. Measured {days_text}.",
        "",
        "| | Quiver | beside it |",
        "| --- | ---: | ---: |",
        *(_line((row.name, value_of(row), _beside(row))) for _, row in shown),
        "",
        "",
    ]
    return "\n".join(lines)


def _beside(row: Row) -> str:
    return "" if row.yardstick is None else f"{yardstick_of(row)}, {row.yardstick_name}"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
