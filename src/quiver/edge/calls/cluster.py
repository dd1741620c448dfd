"""The calls that administrators make about the cluster.

A node that is on its own describes itself, and refuses what only a cluster can do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from quiver import protocol
from quiver.edge.services import ClusterAdmin
from quiver.errors import NotACluster
from quiver.version import __version__

AnyClusterChange = protocol.MovePartition | protocol.TransferLead | protocol.Decommission


async def manage_cluster(
    admin: ClusterAdmin | None, request: AnyClusterChange
) -> protocol.AnyReply:
    """Have something done to the cluster, if there is one."""
    if admin is None:
        raise NotACluster
    match request:
        case protocol.MovePartition():
            await admin.move(request.topic, request.partition, request.nodes)
        case protocol.TransferLead():
            await admin.transfer(request.topic, request.partition, request.node)
        case protocol.Decommission():
            await admin.decommission(request.node, cancel=request.cancel)
    return protocol.Done()


def node_alone(name: str, topics: Sequence[protocol.TopicInfo]) -> protocol.ClusterInfo:
    """A node that is on its own: it leads all partitions of its topics, and nobody else has them."""
    partitions = [
        protocol.PartitionPlacement(
            topic=topic.name, index=one.index, leader=name, replicas=[name], in_sync=[name]
        )
        for topic in topics
        for one in topic.partitions
    ]
    node = protocol.NodeInfo(
        id=name, version=__version__, leads=len(partitions), holds=len(partitions)
    )
    return protocol.ClusterInfo(nodes=[node], partitions=partitions, controller=name)


def as_seen(cluster: protocol.ClusterInfo, sees: Callable[[str], bool]) -> protocol.ClusterInfo:
    """The cluster for a caller who sees some of its topics: nodes are no secret, topics are."""
    topics = {topic for topic in {one.topic for one in cluster.partitions} if sees(topic)}
    seen = [one for one in cluster.partitions if one.topic in topics]
    return msgspec.structs.replace(cluster, partitions=seen)
