"""The node and its cluster over HTTP."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from quiver.protocol import AlertInfo, NodeInfo, PartitionPlacement


class Health(Struct, kw_only=True):
    status: Literal["ok", "disk_full"] = "ok"
    detail: str | UnsetType = UNSET
    """Why it is not ok."""


class ClusterView(Struct, kw_only=True):
    """The cluster, and the node that answers."""

    node: str
    software: str
    uptime_s: float
    topics: int
    connections: int
    nodes: list[NodeInfo]
    partitions: list[PartitionPlacement]
    controller: str | None = None
    revision: int = 0


class AlertsView(Struct, kw_only=True):
    firing: list[AlertInfo]
    """By severity, then newest first."""
    recent: list[AlertInfo]
    """Recently cleared alerts, newest first."""
