"""The cluster as one node knows it: everything that the metadata store says, at one revision."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from quiver.cluster.records import (
    ControllerRecord,
    DeletedRecord,
    NodeId,
    NodeRecord,
    PartitionId,
    SessionId,
    VersionedDraining,
    VersionedPartition,
)
from quiver.errors import InvalidRequest
from quiver.formats import Format


class ClusterState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the metadata store says, at one revision."""

    revision: int = 0
    nodes: Mapping[NodeId, NodeRecord] = {}
    partitions: Mapping[PartitionId, VersionedPartition] = {}
    touched: frozenset[PartitionId] | None = None
    """What the newest commit said about partitions; ``None``: everything was read anew."""
    deleted: Mapping[PartitionId, DeletedRecord] = {}
    draining: Mapping[NodeId, VersionedDraining] = {}
    controller: ControllerRecord | None = None
    controller_revision: int = 0

    def avoided(self) -> frozenset[NodeId]:
        """Those who lead only if nobody else can: they are being emptied, or have no space."""
        full = (node.id for node in self.nodes.values() if node.disk_is_full)
        return frozenset((*self.draining, *full))

    def require_read_by_all(self, format_: Format, version: int) -> None:
        """``InvalidRequest`` while a live node runs a Quiver that does not read this version."""
        old = [
            f"{node.id} (Quiver {node.version})"
            for node in self.nodes.values()
            if node.role == "full" and node.formats.get(format_.name, 0) < version
        ]
        if old:
            raise InvalidRequest(
                f"not all nodes can do this yet: {', '.join(sorted(old))}; upgrade these first"
            )

    def sessions(self) -> dict[NodeId, SessionId]:
        return {node.id: node.session for node in self.nodes.values()}
