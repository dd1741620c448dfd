"""A sample as lines of a given width and height. Where there is little room, less is shown.

Every line fits: columns that matter least go first, then names are cut, then rows.
"""

from __future__ import annotations

import msgspec
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from quiver.cli.support.text import (
    harmless,
    shown_bytes,
    shown_count,
    shown_versions,
    versions_of,
)
from quiver.cli.top.columns import Column, Row, shown_age, shown_ms, shown_rate
from quiver.cli.top.mirrors import MirrorRow
from quiver.cli.top.view import HELP, View
from quiver.console.snapshot import ConsoleSnapshot
from quiver.protocol import AlertInfo, NodeInfo

NAME_WIDTH_MIN, NAME_WIDTH_MAX = 8, 60
_GAP = "  "
_ALERT_STYLES = {"critical": "bold red", "warning": "yellow"}
_MIRROR_STYLES = {"broken": "bold red", "connecting": "yellow"}


class TopSample(msgspec.Struct):
    """What one screen shows."""

    node: ConsoleSnapshot
    alerts: list[AlertInfo]
    nodes: list[NodeInfo] = []
    """Nodes and forwarders of the cluster."""
    mirrors: list[MirrorRow] = []
    trouble: str = ""
    """Why there is nothing newer than this."""


def lines_of(sample: TopSample, view: View, width: int, height: int | None) -> list[Text]:
    """At most ``height`` lines; with ``None`` as many as it takes, and no keys to press."""
    above = [
        _title(sample),
        *_facts(sample, width),
        *_versions(sample),
        *_alerts(sample, height),
        *_mirrors(sample, height),
    ]
    if height is not None:
        above = above[: max(1, height // 2)]
    rows_max = 1_000_000 if height is None else max(0, height - len(above) - 3)
    rows = view.rows(sample.node, rows_max)
    lines = [*above, Text(""), *_table(view, rows, width)]
    if height is not None:
        lines = [*lines[: height - 1], Text(HELP, style="dim")]
    for line in lines:
        line.truncate(width)
    return lines


def _title(sample: TopSample) -> Text:
    node = sample.node.node
    title = Text(harmless(node.name), style="bold")
    title.append(f"  {node.software}  up {shown_age(node.uptime_s)}", style="not bold")
    if sample.trouble:
        title.append(f"  {sample.trouble}", style="bold red")
    return title


def _facts(sample: TopSample, width: int) -> list[Text]:
    """The node's metrics, as many on a line as fit."""
    node, totals = sample.node.node, sample.node.totals
    facts = [
        ("published", f"{shown_rate(totals.published_rate)}"),
        ("written", f"{shown_bytes(totals.byte_rate)}/s"),
        ("done", shown_rate(totals.finished_rate)),
        ("lag", shown_count(totals.pending)),
        ("oldest", shown_age(totals.oldest_s)),
        ("publish p50", shown_ms(node.publish_p50_ms)),
        ("p99", shown_ms(node.publish_p99_ms)),
        ("ready", shown_count(totals.ready)),
        ("leased", shown_count(totals.leased)),
        ("delayed", shown_count(totals.delayed)),
        ("dead", shown_count(totals.dead)),
        ("connections", shown_count(node.connections)),
        ("alerts", shown_count(len(sample.alerts))),
        *([("nodes", _shown_nodes(sample.nodes))] if len(sample.nodes) > 1 else []),
    ]
    lines = [Text("")]
    for name, value in facts:
        needed = cell_len(f"{name} {value}{_GAP}")
        if lines[-1].cell_len and lines[-1].cell_len + needed > width:
            lines.append(Text(""))
        lines[-1].append(f"{name} ", style="dim")
        lines[-1].append(value + _GAP)
    return lines


def _shown_nodes(nodes: list[NodeInfo]) -> str:
    alive = sum(one.alive for one in nodes)
    return f"{alive}" if alive == len(nodes) else f"{alive} of {len(nodes)}"


def _versions(sample: TopSample) -> list[Text]:
    """Which node has which version, while they differ."""
    versions = versions_of(sample.nodes)
    if len(versions) < 2:
        return []
    text = f"! nodes have different versions: {shown_versions(versions)}"
    return [Text(text, style=_ALERT_STYLES["warning"])]


def _alerts(sample: TopSample, height: int | None) -> list[Text]:
    """Those that fire, the worst first; of many, some."""
    room = len(sample.alerts) if height is None else max(1, height // 6)
    shown = sample.alerts[:room]
    lines = [
        Text(f"! {harmless(one.summary)}", style=_ALERT_STYLES.get(one.severity, ""))
        for one in shown
    ]
    left = len(sample.alerts) - len(shown)
    if left:
        lines[-1].append(f"  and {left} more")
    return lines


def _mirrors(sample: TopSample, height: int | None) -> list[Text]:
    """A line for each mirror, those furthest behind first; of many, some."""
    room = len(sample.mirrors) if height is None else max(1, height // 6)
    ordered = sorted(sample.mirrors, key=lambda one: (-(one.lag_s or 0.0), one.name))
    lines = [_mirror(one) for one in ordered[:room]]
    left = len(ordered) - len(lines)
    if left:
        lines[-1].append(f"  and {left} more")
    return lines


def _mirror(one: MirrorRow) -> Text:
    line = Text(f"mirror {harmless(one.name)}{_GAP}", style="dim")
    line.append(one.state, style=f"not dim {_MIRROR_STYLES.get(one.state, '')}".strip())
    for name, value in (
        ("lag", shown_count(one.lag_messages)),
        ("bytes", shown_bytes(one.lag_bytes)),
        ("behind", shown_age(one.lag_s)),
        ("copied", f"{shown_bytes(one.byte_rate)}/s"),
    ):
        line.append(f"{_GAP}{name} ")
        line.append(value, style="not dim")
    if one.error:
        line.append(f"{_GAP}{harmless(one.error)}", style="not dim red")
    return line


# ------------------------------------------------------------------ the table


def _table(view: View, rows: list[Row], width: int) -> list[Text]:
    cells = {
        column.title: [column.show(column.value(row)) for row in rows] for column in view.columns
    }
    columns, widths = _fitting(view.columns, cells, width)
    header = Text("")
    for column in columns:
        is_sorted = column is view.sorted_by
        mark = ("▼" if view.is_descending else "▲") if is_sorted else ""
        style = "bold reverse" if is_sorted else "bold"
        header.append(_aligned(mark + column.title, column, widths), style=style)
        header.append(_GAP)
    lines = [header]
    for number, row in enumerate(rows):
        line = Text("")
        for column in columns:
            style = column.style if column.style and column.value(row) else ""
            line.append(_aligned(cells[column.title][number], column, widths) + _GAP, style=style)
        lines.append(line)
    return lines if rows else [header, Text("nothing yet", style="dim")]


def _fitting(
    columns: tuple[Column, ...], cells: dict[str, list[str]], width: int
) -> tuple[list[Column], dict[str, int]]:
    """The columns that there is room for, and how wide each is."""
    widths = {
        one.title: max(cell_len(text) for text in (one.title + "▼", *cells[one.title]))
        for one in columns
    }
    name = columns[0]
    least = min(widths[name.title], NAME_WIDTH_MIN)
    left = sorted(columns, key=lambda one: one.rank)
    while len(left) > 2 and _sum(left[1:], widths) + least > width:
        left.pop()
    room = max(1, width - _sum(left[1:], widths))
    widths[name.title] = min(widths[name.title], room, NAME_WIDTH_MAX)
    return [one for one in columns if one in left], widths


def _sum(columns: list[Column], widths: dict[str, int]) -> int:
    return sum(widths[one.title] + len(_GAP) for one in columns)


def _aligned(text: str, column: Column, widths: dict[str, int]) -> str:
    width = widths[column.title]
    if cell_len(text) > width:
        return set_cell_size(text, width - 1) + "…" if width > 1 else "…"
    if column.is_text:
        return set_cell_size(text, width)
    return " " * (width - cell_len(text)) + text
