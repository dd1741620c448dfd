"""The HTTP edge put together: every operation over some clients."""

from __future__ import annotations

from quiver.config import NodeConfig
from quiver.edge.http import (
    browsing,
    node_state,
    observing,
    queues,
    subscriptions,
    tending,
    topics,
)
from quiver.edge.http.clients import Clients
from quiver.edge.http.console import LiveEndpoint, console_pages
from quiver.edge.http.description import description_of
from quiver.edge.http.edge import Edge
from quiver.edge.http.stream import StreamEndpoint

OPERATIONS = (
    *queues.OPERATIONS,
    *topics.OPERATIONS,
    *browsing.OPERATIONS,
    *subscriptions.OPERATIONS,
    *tending.OPERATIONS,
    *node_state.OPERATIONS,
    *observing.OPERATIONS,
)


def edge_of(config: NodeConfig, clients: Clients) -> Edge:
    origins = [origin.strip() for origin in config.web.cors_origins.split(",")]
    edge = Edge(
        clients,
        config.limits,
        (*OPERATIONS, *description_of(OPERATIONS), *console_pages()),
        cors_origins=[origin for origin in origins if origin],
    )
    edge.add_socket("/subscriptions/{name}/stream", StreamEndpoint(edge))
    edge.add_socket("/console/live", LiveEndpoint(edge))
    return edge
