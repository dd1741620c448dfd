"""The numbers a node keeps about itself, for Prometheus and for whoever asks the node.

One registry for each node, so that several can live in one process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge


class NodeMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.connections = Gauge(
            "quiver_connections", "Clients connected now.", registry=self.registry
        )
        self.connections_opened = self._counter(
            "quiver_connections_opened", "Connections accepted since the start."
        )
        self.connections_closed = self._counter(
            "quiver_connections_closed",
            "Connections that ended, by reason.",
            "reason",
        )
        self.requests = self._counter("quiver_requests", "Requests received, by call.", "call")
        self.requests_of: Callable[[Any], Counter] = cache(self.requests.labels)
        """The counter of one call, found once."""
        self.errors = self._counter("quiver_errors", "Requests refused or failed.", "code")
        self.published_batches = self._counter(
            "quiver_published_batches", "Batches acknowledged, repeats included."
        )
        self.published_bytes = self._counter(
            "quiver_published_bytes", "Bytes of batches that were offered."
        )
        self.unread_lost = self._counter(
            "quiver_unread_lost_messages", "Messages that retention removed before they were read."
        )
        self.fetched_bytes = self._counter("quiver_fetched_bytes", "Bytes sent to readers.")

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(name, help_text, labels, registry=self.registry)

    def values(self) -> dict[str, float]:
        """Every number now, by name and labels."""
        return {
            sample.name
            + "".join(
                f"{{{name}={value}}}" for name, value in sorted(sample.labels.items())
            ): sample.value
            for metric in self.registry.collect()
            for sample in metric.samples
            if not sample.name.endswith("_created")
        }
