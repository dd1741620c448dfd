"""What commands print: tables or JSON on standard output, progress on standard error.

Standard output holds only results, so that it can be piped. Progress bars appear only on a terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

import typer

from quiver.cli.support.exit_codes import tell

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

T = TypeVar("T")
_WIDE = 10_000


def print_line(text: str) -> None:
    sys.stdout.write(text + "\n")


def print_json(value: Any, *, indent: bool = True) -> None:
    """One JSON document; on one line if it is one of many."""
    import msgspec  # noqa: PLC0415 - not for help

    encoded = msgspec.json.encode(value)
    if indent:
        encoded = msgspec.json.format(encoded, indent=2)
    print_line(encoded.decode())


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table; columns whose name begins with ``>`` are aligned to the right."""
    from rich.console import Console  # noqa: PLC0415 - only commands that print one pay for it
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        right = column.startswith(">")
        table.add_column(
            column.removeprefix(">"), justify="right" if right else "left", no_wrap=True
        )
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:
        console.width = _WIDE
    console.print(table)


def print_listing(
    found: Sequence[T],
    *,
    json: bool,
    none: str,
    columns: Sequence[str],
    row: Callable[[T], Sequence[object]],
) -> None:
    """Print a list as JSON or as a table; without JSON, an empty list prints ``none``."""
    if json:
        print_json(found)
    elif found:
        print_table(columns, [row(one) for one in found])
    else:
        tell(none)


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on standard error while the block runs; call with how many more are done."""
    if not sys.stderr.isatty():
        yield lambda _count: None
        return
    from rich.console import Console  # noqa: PLC0415 - only a terminal pays for it
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)
