"""The numbers a node keeps about itself, for Prometheus and for whoever asks the node.

One registry for each node, so that several can live in one process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import accumulate
from math import inf
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector

from quiver.metrics import definitions
from quiver.metrics.definitions import Definition
from quiver.metrics.traffic import NAMES_MAX, Traffic


class NodeMetrics:
    def __init__(self, names_max: int = NAMES_MAX) -> None:
        self.registry = CollectorRegistry()
        self.traffic = Traffic(names_max)
        self.connections = self._gauge(definitions.CONNECTIONS)
        self.connections_opened = self._counter(definitions.CONNECTIONS_OPENED)
        self.connections_closed = self._counter(definitions.CONNECTIONS_CLOSED)
        self.requests = self._counter(definitions.REQUESTS)
        self.requests_of: Callable[[Any], Counter] = cache(self.requests.labels)
        """The counter of one call, found once."""
        self.errors = self._counter(definitions.ERRORS)
        self.published_batches = self._counter(definitions.PUBLISHED_BATCHES)
        self.published_bytes = self._counter(definitions.PUBLISHED_BYTES)
        self.unread_lost = self._counter(definitions.UNREAD_LOST)
        self.fetched_bytes = self._counter(definitions.FETCHED_BYTES)
        self.forwarded_bytes = self._counter(definitions.FORWARDED_BYTES)
        self.process = CollectorRegistry()
        """Metrics of the process, by their usual names: ``process_resident_memory_bytes`` …"""
        ProcessCollector(registry=self.process)

    def _counter(self, definition: Definition) -> Counter:
        return Counter(definition.name, definition.help, definition.labels, registry=self.registry)

    def _gauge(self, definition: Definition) -> Gauge:
        return Gauge(definition.name, definition.help, definition.labels, registry=self.registry)

    def values(self) -> dict[str, float]:
        """Every number of the node now, by name and labels; publish latency over all topics."""
        latency = self.traffic.publish_latency
        publishes = {
            f"{definitions.PUBLISH.name}_bucket{{le={bound:g}}}": float(count)
            for bound, count in zip((*latency.bounds, inf), accumulate(latency.counts), strict=True)
        }
        return publishes | {
            sample.name
            + "".join(
                f"{{{name}={value}}}" for name, value in sorted(sample.labels.items())
            ): sample.value
            for metric in self.registry.collect()
            for sample in metric.samples
            if not sample.name.endswith("_created")
        }

    @property
    def open_connections(self) -> int:
        """How many connections there are now."""
        (gauge,) = self.connections.collect()
        return int(gauge.samples[0].value)

    def total(self, counter: Counter) -> float:
        """A counter over all its labels."""
        return sum(
            sample.value
            for metric in counter.collect()
            for sample in metric.samples
            if sample.name.endswith("_total")
        )
