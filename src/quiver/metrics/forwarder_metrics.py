"""The metrics of a forwarder: its connections, its requests, what it passed on, and its process."""

from __future__ import annotations

from quiver.metrics.exposition import forwarder_exposition
from quiver.metrics.node_metrics import NodeMetrics
from quiver.version import __version__


class ForwarderMetrics:
    def __init__(self, name: str, metrics: NodeMetrics) -> None:
        self._name = name
        self._metrics = metrics

    def count(self, operation: str) -> None:
        """An HTTP request came."""
        self._metrics.requests_of(operation).inc()

    def text(self) -> bytes:
        """As Prometheus reads them."""
        return forwarder_exposition(self._metrics, name=self._name, version=__version__)
