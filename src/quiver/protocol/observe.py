"""A node's state: description, metrics and alerts."""

from __future__ import annotations

import msgspec

from quiver.protocol.base import Reply, Request


class DescribeNode(Request, tag="describe_node"):
    pass


class Node(Reply, tag="node"):
    node: str
    software: str
    uptime_s: float
    topics: int
    partitions: int
    connections: int
    counters: dict[str, float] = {}
    time_us: int = 0
    """The node's clock, in microseconds since 1970."""


class ReadMetrics(Request, tag="read_metrics"):
    pass


class Metrics(Reply, tag="metrics"):
    """The body is the node's metrics, as text that Prometheus reads."""

    media_type: str


class AlertInfo(msgspec.Struct, kw_only=True):
    """An alert that is firing or has cleared."""

    rule: str
    watch: str
    subject: str
    """The subscription, topic or node; empty for the node in ``node``."""
    severity: str
    state: str
    """``firing`` or ``cleared``."""
    value: float
    """The value at which the alert fired or cleared."""
    limit: float
    unit: str
    since_us: int
    """When it fired."""
    until_us: int | None = None
    """When it cleared."""
    summary: str = ""
    """The alert in one line."""
    node: str = ""
    """The node that raised the alert."""


class ListAlerts(Request, tag="list_alerts"):
    pass


class Alerts(Reply, tag="alerts"):
    firing: list[AlertInfo]
    """By severity, then newest first."""
    recent: list[AlertInfo]
    """Recently cleared alerts, newest first."""
