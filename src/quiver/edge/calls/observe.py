"""The calls about a node's state: its description, its metrics and its alerts."""

from __future__ import annotations

from quiver import protocol
from quiver.edge.auth.call_permissions import cluster_watch, nothing
from quiver.edge.auth.caller import Caller
from quiver.edge.calls import merge
from quiver.edge.calls.call import Call
from quiver.edge.calls.context import Answer, Context
from quiver.edge.calls.fan_out.route import AtAllNodes, AtMachine
from quiver.metrics.exposition import CONTENT_TYPE
from quiver.version import __version__


async def describe_node(context: Context, _request: protocol.DescribeNode, _: memoryview) -> Answer:
    services = context.services
    return protocol.Node(
        node=services.node,
        software=f"quiver/{__version__}",
        uptime_s=services.clock.monotonic() - services.started,
        topics=services.broker.topics.count,
        partitions=services.broker.partition_count,
        connections=services.metrics.open_connections,
        counters=services.metrics.values() if context.caller.is_admin else {},
        time_us=services.clock.time_us(),
    ), ()


async def read_metrics(context: Context, _request: protocol.ReadMetrics, _: memoryview) -> Answer:
    text = await context.services.observability.text()
    return protocol.Metrics(media_type=CONTENT_TYPE), [text]


async def list_alerts(context: Context, _request: protocol.ListAlerts, _: memoryview) -> Answer:
    observability = context.services.observability
    return protocol.Alerts(firing=observability.firing, recent=observability.recent), ()


def hide_alerts(caller: Caller, reply: protocol.Alerts) -> None:
    """Everybody sees alerts about nodes. Others need permission to see the subject."""

    def sees(alert: protocol.AlertInfo) -> bool:
        name = alert.subject
        return not name or caller.sees_subscription(name) or caller.sees_topic(name)

    reply.firing = [one for one in reply.firing if sees(one)]
    reply.recent = [one for one in reply.recent if sees(one)]


CALLS = (
    Call(request=protocol.DescribeNode, handler=describe_node, needs=nothing),
    Call(
        request=protocol.ReadMetrics,
        handler=read_metrics,
        needs=cluster_watch,
        runs=AtMachine(),
        merge=merge.metrics,
    ),
    # Each node judges what it leads, and one of them the cluster.
    Call(
        request=protocol.ListAlerts,
        handler=list_alerts,
        needs=nothing,
        runs=AtAllNodes(),
        merge=merge.alerts,
        hide=hide_alerts,
    ),
)
