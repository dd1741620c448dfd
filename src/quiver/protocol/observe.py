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


class ReadMetrics(Request, tag="read_metrics"):
    pass


class Metrics(Reply, tag="metrics"):
    """The body is the node's figures, as text that Prometheus reads."""

    media_type: str


class AlertInfo(msgspec.Struct, kw_only=True):
    """An alert that fires or has cleared."""

    rule: str
    watch: str
    subject: str
    """The subscription, topic or node; empty for the node that found it."""
    severity: str
    state: str
    """``firing`` or ``cleared``."""
    value: float
    """What it was when the alert fired or cleared."""
    limit: float
    unit: str
    since_us: int
    """When it fired."""
    until_us: int | None = None
    """When it cleared."""
    summary: str = ""
    """All of this in one line."""
    node: str = ""
    """The node that found it."""


class ListAlerts(Request, tag="list_alerts"):
    pass


class Alerts(Reply, tag="alerts"):
    firing: list[AlertInfo]
    """The worst first, then the newest."""
    recent: list[AlertInfo]
    """Those that cleared lately, the newest first."""
