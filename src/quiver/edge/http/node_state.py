"""The node itself over HTTP: whether it lives, whether it takes work, what it is."""

from __future__ import annotations

from quiver.edge.http.call import Call
from quiver.edge.http.edge import encode
from quiver.edge.http.operation import JSON, Operation, Reply
from quiver.edge.http.structs import ClusterView, Health
from quiver.errors import ShuttingDown

_OK = encode(Health())


async def is_alive(call: Call) -> Reply:
    return Reply(200, _OK)


async def is_ready(call: Call) -> Reply:
    if call.edge.draining.is_set():
        raise ShuttingDown
    return Reply(200, _OK)


async def describe_cluster(call: Call) -> Reply:
    node = await call.client.describe_node()
    view = ClusterView(
        node=node.node,
        software=node.software,
        uptime_s=node.uptime_s,
        topics=node.topics,
        partitions=node.partitions,
        connections=node.connections,
    )
    return Reply(200, encode(view))


OPERATIONS = (
    Operation(
        method="GET",
        path="/healthz",
        handler=is_alive,
        summary="Whether the process lives.",
        tag="node",
        replies={200: ("It does.", {JSON: Health})},
        is_open=True,
    ),
    Operation(
        method="GET",
        path="/readyz",
        handler=is_ready,
        summary="Whether the node takes work: not while it is stopping.",
        tag="node",
        replies={200: ("It does.", {JSON: Health})},
        errors=(ShuttingDown,),
        is_open=True,
    ),
    Operation(
        method="GET",
        path="/cluster",
        handler=describe_cluster,
        summary="The node that answers.",
        tag="node",
        replies={200: ("The node.", {JSON: ClusterView})},
    ),
)
