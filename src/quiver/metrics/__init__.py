"""What a node counts and shows about itself, for Prometheus, alerts and whoever asks."""

from quiver.metrics.node_metrics import NodeMetrics

__all__ = ["NodeMetrics"]
