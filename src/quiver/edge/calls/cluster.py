"""The calls that administrators make about the cluster.

A node that is on its own describes itself, and refuses what only a cluster can do.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quiver import protocol
from quiver.edge.auth.call_permissions import (
    CLUSTER_WATCH,
    CONSUME,
    Definitions,
    Needs,
    cluster_admin,
    nothing,
    subscription,
)
from quiver.edge.auth.caller import Caller
from quiver.edge.calls.call import Call
from quiver.edge.calls.context import Answer, Context
from quiver.edge.services import ClusterAdmin
from quiver.errors import NotACluster
from quiver.version import __version__


async def describe(context: Context, _request: protocol.DescribeCluster, _: memoryview) -> Answer:
    services = context.services
    if services.cluster is not None:
        cluster = services.cluster.describe()
    else:
        broker = services.broker
        cluster = node_alone(
            services.node,
            broker.topics.infos(),
            disk_is_full=broker.maintenance.disk_is_full,
        )
    nodes = services.forwarders.described(cluster.nodes, services.clock.monotonic())
    return protocol.Cluster(cluster=msgspec.structs.replace(cluster, nodes=nodes)), ()


async def announce(context: Context, request: protocol.Announce, _: memoryview) -> Answer:
    """A forwarder lives for as long as its connection does and it says so."""
    services, now = context.services, context.services.clock.monotonic()
    services.forwarders.announce(request, context.caller, now)
    context.caller.is_forwarder = True
    callers = services.forwarders.webhook_callers(now) if services.forwarders_call_webhooks else []
    return protocol.Announced(nodes=services.node_addresses, webhook_callers=callers), ()


async def move(context: Context, request: protocol.MovePartition, _: memoryview) -> Answer:
    await _admin(context).move(request.topic, request.partition, request.nodes)
    return protocol.Done(), ()


async def transfer(context: Context, request: protocol.TransferLead, _: memoryview) -> Answer:
    await _admin(context).transfer(request.topic, request.partition, request.node)
    return protocol.Done(), ()


async def decommission(context: Context, request: protocol.Decommission, _: memoryview) -> Answer:
    await _admin(context).decommission(request.node, cancel=request.cancel)
    return protocol.Done(), ()


async def rotate_secret(
    context: Context, _request: protocol.RotatePeerSecret, _: memoryview
) -> Answer:
    secrets = context.services.peer_secrets
    if secrets is None:
        raise NotACluster
    await secrets.rotate()
    return protocol.Done(), ()


def to_announce(request: protocol.Announce, _: Definitions) -> Needs:
    """Who calls webhooks consumes from every subscription that has one."""
    if request.calls_webhooks:
        return CLUSTER_WATCH, subscription(CONSUME, "*")
    return (CLUSTER_WATCH,)


def _admin(context: Context) -> ClusterAdmin:
    if context.services.cluster is None:
        raise NotACluster
    return context.services.cluster


def node_alone(
    name: str, topics: Sequence[protocol.TopicInfo], *, disk_is_full: bool
) -> protocol.ClusterInfo:
    """A node that is on its own: it leads all partitions of its topics, and nobody else has them."""
    partitions = [
        protocol.PartitionPlacement(
            topic=topic.name, index=one.index, leader=name, replicas=[name], in_sync=[name]
        )
        for topic in topics
        for one in topic.partitions
    ]
    node = protocol.NodeInfo(
        id=name,
        version=__version__,
        protocols=[protocol.PROTOCOL_VERSION],
        disk_is_full=disk_is_full,
        leads=len(partitions),
        holds=len(partitions),
    )
    return protocol.ClusterInfo(nodes=[node], partitions=partitions, controller=name)


def hide_topics(caller: Caller, reply: protocol.Cluster) -> None:
    """Nodes are no secret, topics are."""
    partitions = reply.cluster.partitions
    topics = {topic for topic in {one.topic for one in partitions} if caller.sees_topic(topic)}
    seen = [one for one in partitions if one.topic in topics]
    reply.cluster = msgspec.structs.replace(reply.cluster, partitions=seen)


CALLS = (
    Call(request=protocol.DescribeCluster, handler=describe, needs=nothing, hide=hide_topics),
    Call(request=protocol.Announce, handler=announce, needs=to_announce),
    Call(request=protocol.MovePartition, handler=move, needs=cluster_admin, is_audited=True),
    Call(request=protocol.TransferLead, handler=transfer, needs=cluster_admin, is_audited=True),
    Call(request=protocol.Decommission, handler=decommission, needs=cluster_admin, is_audited=True),
    Call(
        request=protocol.RotatePeerSecret,
        handler=rotate_secret,
        needs=cluster_admin,
        is_audited=True,
        is_for_peers=False,
    ),
)
