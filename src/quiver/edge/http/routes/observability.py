"""The node's metrics and alerts over HTTP."""

from __future__ import annotations

from quiver.edge.http.call import Call
from quiver.edge.http.edge import encode
from quiver.edge.http.operation import JSON, Operation, Reply
from quiver.edge.http.schemas.node import AlertsView
from quiver.errors import PermissionDenied
from quiver.metrics.exposition import CONTENT_TYPE

TEXT = "text/plain"


async def read_metrics(call: Call) -> Reply:
    own = call.edge.metrics
    text = (await call.client.metrics()).encode() if own is None else own.text()
    return Reply(200, text, CONTENT_TYPE)


async def list_alerts(call: Call) -> Reply:
    alerts = await call.client.alerts()
    return Reply(200, encode(AlertsView(firing=alerts.firing, recent=alerts.recent)))


OPERATIONS = (
    Operation(
        method="GET",
        path="/metrics",
        id="read_metrics",
        handler=read_metrics,
        summary="Metrics of the node in the Prometheus text format.",
        tag="node",
        replies={200: ("The metrics.", {TEXT: None})},
        errors=(PermissionDenied,),
    ),
    Operation(
        method="GET",
        path="/alerts",
        id="list_alerts",
        handler=list_alerts,
        summary="List alerts that are firing, and those that cleared recently.",
        tag="node",
        replies={200: ("The alerts.", {JSON: AlertsView})},
    ),
)
