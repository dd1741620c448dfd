"""A dashboard for Grafana with every metric of a node, made from their definitions."""

from __future__ import annotations

import json
from typing import Any

from quiver.metrics.definitions import GROUPS, Definition, MetricKind

_WIDTH, _HEIGHT, _COLUMNS = 8, 7, 3
_UNITS = {"seconds": "s", "bytes": "bytes"}
_SOURCE = {"type": "prometheus", "uid": "${source}"}


def dashboard() -> str:
    document = {
        "uid": "quiver",
        "title": "Quiver",
        "tags": ["quiver"],
        "schemaVersion": 39,
        "timezone": "browser",
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "label": "Source", "type": "datasource", "query": "prometheus"}
            ]
        },
        "panels": _panels(),
    }
    return json.dumps(document, indent=2) + "\n"


def _panels() -> list[dict[str, Any]]:
    """A row for each group, the panels of its metrics below it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, group in GROUPS.items():
        place = {"h": 1, "w": _WIDTH * _COLUMNS, "x": 0, "y": top}
        panels.append({"type": "row", "title": title, "gridPos": place, "collapsed": False})
        top += 1
        for number, one in enumerate(group):
            row, column = divmod(number, _COLUMNS)
            place = {"h": _HEIGHT, "w": _WIDTH, "x": column * _WIDTH, "y": top + row * _HEIGHT}
            panels.append(_panel(one, place))
        top += -(-len(group) // _COLUMNS) * _HEIGHT
    return [panel | {"id": number} for number, panel in enumerate(panels, 1)]


def _panel(one: Definition, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + number), "expr": expression, "legendFormat": legend}
        for number, (expression, legend) in enumerate(expressions(one))
    ]
    return {
        "type": "timeseries",
        "title": one.name,
        "description": one.help,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": _unit(one)}, "overrides": []},
        "targets": targets,
    }


def expressions(one: Definition) -> list[tuple[str, str]]:
    """What is drawn of a metric, and how the lines are called."""
    by = ", ".join(("instance", *one.labels))
    legend = " ".join(f"{{{{{label}}}}}" for label in one.labels or ("instance",))
    if one.kind is MetricKind.COUNTER:
        return [(f"sum by ({by}) (rate({one.name}[1m]))", legend)]
    if one.kind is MetricKind.GAUGE:
        return [(f"sum by ({by}) ({one.name})", legend)]
    return [
        (
            f"histogram_quantile({share}, sum by ({by}, le) (rate({one.name}_bucket[1m])))",
            f"p{share * 100:g} {legend}",
        )
        for share in (0.5, 0.99)
    ]


def _unit(one: Definition) -> str:
    """In Grafana's words; of a counter, what its rate is in."""
    words = one.name.removesuffix("_total").split("_")
    unit = _UNITS.get(words[-1], "short")
    if one.kind is MetricKind.COUNTER:
        return "Bps" if unit == "bytes" else "ops"
    return unit
