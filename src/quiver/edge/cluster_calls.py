"""The calls that administrators make about the cluster.

A node that is on its own describes itself, and refuses what only a cluster can do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from quiver.errors import NotACluster
from quiver.model import wire
from quiver.version import __version__

AnyClusterChange = wire.MovePartition | wire.TransferLead | wire.Decommission


class ClusterAdmin(Protocol):
    """What an operator can see of a cluster and have done to it, from any of its nodes.

    Whatever changes something returns once the cluster has agreed on it; carrying it out may take
    longer, and ``describe`` shows how far it is.
    """

    def describe(self) -> wire.ClusterInfo: ...

    async def move(self, topic: str, partition: int, nodes: Sequence[str]) -> None: ...

    async def transfer(self, topic: str, partition: int, node: str | None) -> None: ...

    async def decommission(self, node: str, *, cancel: bool) -> None: ...


async def manage_cluster(admin: ClusterAdmin | None, request: AnyClusterChange) -> wire.AnyReply:
    """Have something done to the cluster, if there is one."""
    if admin is None:
        raise NotACluster
    match request:
        case wire.MovePartition():
            await admin.move(request.topic, request.partition, request.nodes)
        case wire.TransferLead():
            await admin.transfer(request.topic, request.partition, request.node)
        case wire.Decommission():
            await admin.decommission(request.node, cancel=request.cancel)
    return wire.Done()


def node_alone(name: str, topics: Sequence[wire.TopicInfo]) -> wire.ClusterInfo:
    """A node that is on its own: it leads all partitions of its topics, and nobody else has them."""
    partitions = [
        wire.PartitionPlacement(
            topic=topic.name, index=one.index, leader=name, replicas=[name], in_sync=[name]
        )
        for topic in topics
        for one in topic.partitions
    ]
    node = wire.NodeInfo(id=name, version=__version__, leads=len(partitions), holds=len(partitions))
    return wire.ClusterInfo(nodes=[node], partitions=partitions, controller=name)


def as_seen(cluster: wire.ClusterInfo, sees: Callable[[str], bool]) -> wire.ClusterInfo:
    """The cluster for a caller who sees some of its topics: nodes are no secret, topics are."""
    topics = {topic for topic in {one.topic for one in cluster.partitions} if sees(topic)}
    seen = [one for one in cluster.partitions if one.topic in topics]
    return msgspec.structs.replace(cluster, partitions=seen)
