"""The HTTP edge with all its operations."""

from __future__ import annotations

from collections.abc import Callable

from quiver.config import NodeConfig
from quiver.console.history import MetricsHistory
from quiver.edge.http.clients import Clients
from quiver.edge.http.edge import Edge
from quiver.edge.http.requests import Requests
from quiver.edge.http.routes import (
    browse,
    mirrors,
    node_state,
    observability,
    queue_deliveries,
    queues,
    subscription_admin,
    subscriptions,
    tokens,
    topics,
    transactions,
)
from quiver.edge.http.routes.console import LiveEndpoint, console_pages
from quiver.edge.http.routes.description import description_of
from quiver.edge.http.stream.endpoint import StreamEndpoint
from quiver.edge.http.web_access import access_of
from quiver.metrics.forwarder_metrics import ForwarderMetrics

OPERATIONS = (
    *queues.OPERATIONS,
    *queue_deliveries.OPERATIONS,
    *topics.OPERATIONS,
    *browse.OPERATIONS,
    *subscriptions.OPERATIONS,
    *subscription_admin.OPERATIONS,
    *transactions.OPERATIONS,
    *mirrors.OPERATIONS,
    *tokens.OPERATIONS,
    *node_state.OPERATIONS,
    *observability.OPERATIONS,
)


def edge_of(
    config: NodeConfig,
    clients: Clients,
    requests: Requests | None = None,
    require_space: Callable[[], None] = lambda: None,
    *,
    is_single: bool = False,
    history: MetricsHistory | None = None,
    metrics: ForwarderMetrics | None = None,
) -> Edge:
    """``require_space`` raises ``DiskFull`` while the node stores no messages. ``is_single``: no other
    node could store them. ``history`` is what the console's charts begin with. A forwarder has
    ``metrics`` of its own."""
    edge = Edge(
        clients,
        config.limits,
        (*OPERATIONS, *description_of(OPERATIONS), *console_pages(history or MetricsHistory())),
        require_space=require_space,
        is_single=is_single,
        access=access_of(config),
        requests=requests,
        metrics=metrics,
    )
    for kind in ("subscriptions", "queues"):
        edge.add_socket(f"/{kind}/{{name}}/stream", StreamEndpoint(edge))
    edge.add_socket("/console/live", LiveEndpoint(edge))
    return edge
