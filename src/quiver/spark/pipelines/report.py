"""A short page with charts, for people who would rather look than read. It needs no network."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
import plotly.io

from quiver.spark.pipelines.runner import BatchMetrics

_STYLE = (
    "body{font-family:system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;"
    "color:#1c2430}table{border-collapse:collapse;margin:1rem 0}td,th{padding:.3rem .8rem;"
    "border-bottom:1px solid #d8dee6;text-align:left}code{background:#f2f4f7;padding:.1rem .3rem}"
)
_ROWS_MAX = 50


class Report:
    """Gathers parts in their order; ``write`` makes one file of them."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._parts: list[str] = []
        self._charts = 0

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(_shown(cell))}</td>" for cell in row) + "</tr>"
            for row in rows[:_ROWS_MAX]
        )
        more = f"<p>and {len(rows) - _ROWS_MAX:,} more</p>" if len(rows) > _ROWS_MAX else ""
        self._parts.append(
            f"<h2>{html.escape(title)}</h2><table><tr>{head}</tr>{body}</table>{more}"
        )

    def bars(self, title: str, names: Sequence[str], values: Sequence[float]) -> None:
        self._chart(title, go.Bar(x=list(map(_shown, names)), y=list(values)))

    def line(self, title: str, places: Sequence[Any], values: Sequence[float]) -> None:
        self._chart(title, go.Scatter(x=list(places), y=list(values), mode="lines+markers"))

    def batches(self, batches: Sequence[BatchMetrics]) -> None:
        """How the run went, batch by batch."""
        rows = sum(one.rows for one in batches)
        seconds = sum(one.seconds for one in batches)
        summary = [("messages", rows), ("batches", len(batches)), ("seconds", round(seconds, 2))]
        self.table("The run", ["what", "value"], summary)
        if batches:
            numbers = list(range(1, len(batches) + 1))
            self.line(
                "Messages per second, by batch", numbers, [f.rows_per_second for f in batches]
            )
            self.line("Lag, by batch", numbers, [f.lag for f in batches])

    def write(self, path: str) -> None:
        with open(path, "w", encoding="utf-8") as file:
            file.write(
                f"<!doctype html><html lang=en><meta charset=utf-8>"
                f"<title>{html.escape(self._title)}</title><style>{_STYLE}</style>"
                f"<h1>{html.escape(self._title)}</h1>{''.join(self._parts)}</html>"
            )

    def _chart(self, title: str, trace: Any) -> None:
        figure = go.Figure(trace)
        figure.update_layout(title=title, height=320, margin={"l": 40, "r": 20, "t": 50, "b": 40})
        self._charts += 1
        self._parts.append(
            plotly.io.to_html(figure, full_html=False, include_plotlyjs=self._charts == 1)
        )


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else str(value)
