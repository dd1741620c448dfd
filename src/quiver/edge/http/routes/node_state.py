"""Health and readiness of the node, and the state of its cluster, over HTTP."""

from __future__ import annotations

from quiver.edge.http.call import Call
from quiver.edge.http.edge import encode
from quiver.edge.http.operation import JSON, Operation, Reply
from quiver.edge.http.schemas.node import ClusterView, Health
from quiver.errors import DiskFull, PermissionDenied, ShuttingDown, Unavailable

_OK = encode(Health())


async def is_alive(call: Call) -> Reply:
    return Reply(200, _OK)


async def is_ready(call: Call) -> Reply:
    if call.edge.draining.is_set():
        raise ShuttingDown
    if call.edge.is_joining:
        raise Unavailable("the node is joining its cluster; try again later, or on another node")
    try:
        call.edge.require_space()
    except DiskFull as full:
        return Reply(200, encode(Health(status="disk_full", detail=full.message)))
    return Reply(200, _OK)


async def describe_cluster(call: Call) -> Reply:
    cluster = await call.client.describe_cluster()
    node = await call.client.describe_node()
    view = ClusterView(
        node=node.node,
        software=node.software,
        uptime_s=node.uptime_s,
        topics=node.topics,
        connections=node.connections,
        nodes=cluster.nodes,
        partitions=cluster.partitions,
        controller=cluster.controller,
        revision=cluster.revision,
    )
    return Reply(200, encode(view))


OPERATIONS = (
    Operation(
        method="GET",
        path="/healthz",
        id="is_alive",
        handler=is_alive,
        summary="Liveness: the process runs.",
        tag="node",
        replies={200: ("The process runs.", {JSON: Health})},
        is_open=True,
    ),
    Operation(
        method="GET",
        path="/readyz",
        id="is_ready",
        handler=is_ready,
        summary="Readiness: the node accepts requests. It fails while the node is joining its cluster or "
        "stopping. "
        "While the disk is full the node still serves reads: the status is `disk_full`.",
        tag="node",
        replies={200: ("The node is ready.", {JSON: Health})},
        errors=(ShuttingDown, Unavailable),
        is_open=True,
    ),
    Operation(
        method="GET",
        path="/cluster",
        id="describe_cluster",
        handler=describe_cluster,
        summary="Describe the cluster: its nodes, partitions, replicas and leaders.",
        tag="node",
        replies={200: ("The cluster.", {JSON: ClusterView})},
        errors=(PermissionDenied,),
    ),
)
