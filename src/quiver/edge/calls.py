"""Requests that are answered with one reply: about topics, subscriptions, tokens, nodes.

Who asks has been let in; what they may not know of is left out of listings here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from quiver.edge.access.caller import Caller
from quiver.edge.access.principal import PEER
from quiver.edge.cluster_calls import AnyClusterChange, as_seen, manage_cluster, node_alone
from quiver.edge.scatter import Scatter
from quiver.edge.services import NodeServices
from quiver.edge.subscription_calls import find, manage, peek, push_url, read_state
from quiver.edge.token_calls import manage_tokens
from quiver.errors import UnsupportedProtocol
from quiver.metrics.exposition import CONTENT_TYPE
from quiver.model import wire
from quiver.model.batch import Bytes
from quiver.version import __version__

PEER_REQUESTS_MAX = 65_536
"""How many requests of another node may be unanswered: each log that it copies has one."""


class Calls:
    def __init__(self, services: NodeServices, caller: Caller) -> None:
        self._services = services
        self._caller = caller

    async def reply_to(self, request: wire.AnyRequest) -> tuple[wire.AnyReply, Sequence[Bytes]]:
        scatter = Scatter(self._services)
        if not scatter.is_needed(self._caller):
            return await self.reply_here(request)
        reply, body = await scatter.reply_to(request, lambda: self.reply_here(request))
        self._leave_out(reply)
        return reply, body

    def _leave_out(self, reply: wire.AnyReply) -> None:
        """Take from what this node or another has to say what the caller may not know of."""
        if isinstance(reply, wire.MessageFound):
            sees = self._caller.sees_subscription
            reply.statuses = [one for one in reply.statuses if sees(one.subscription)]
        elif isinstance(reply, wire.Alerts):
            reply.firing = [one for one in reply.firing if self._sees(one)]
            reply.recent = [one for one in reply.recent if self._sees(one)]

    async def reply_here(self, request: wire.AnyRequest) -> tuple[wire.AnyReply, Sequence[Bytes]]:
        """What this node alone has to say."""
        if isinstance(request, wire.CreateTopic | wire.CreateQueue):
            self._caller.require_room_for_topic(request.name, self._services.broker.topic_names)
        handler = _HANDLERS.get(type(request))
        if handler is not None:
            return await handler(self, request), ()
        if isinstance(request, wire.ReadMetrics):
            return wire.Metrics(media_type=CONTENT_TYPE), [await self._services.observing.text()]
        if isinstance(request, wire.Peek):
            return await peek(self._services.broker, request)
        if isinstance(request, wire.FindMessage):
            found, body = await find(self._services.broker, request)
            self._leave_out(found)
            return found, body
        if isinstance(request, wire.ReadState):
            return await read_state(self._services.broker, request)
        self._services.require_target(push_url(request))
        reply = await manage(self._services.broker, request)
        if isinstance(reply, wire.Subscriptions):
            reply.subscriptions = [
                one for one in reply.subscriptions if self._caller.sees_subscription(one.name)
            ]
        return reply, ()

    async def _hello(self, request: wire.Hello) -> wire.AnyReply:
        require_version(request)
        limits = self._services.limits
        return wire.Welcome(
            version=wire.PROTOCOL_VERSION,
            node=self._services.node,
            software=f"quiver/{__version__}",
            frame_bytes_max=limits.request_bytes_max,
            requests_max=PEER_REQUESTS_MAX
            if self._caller.principal is PEER
            else limits.requests_max,
        )

    async def _create_topic(self, request: wire.CreateTopic) -> wire.AnyReply:
        info = await self._services.broker.create_topic(
            request.name, request.settings, exist_ok=request.exist_ok
        )
        return wire.Topic(topic=info)

    async def _alter_topic(self, request: wire.AlterTopic) -> wire.AnyReply:
        return wire.Topic(
            topic=await self._services.broker.alter_topic(request.name, request.changes)
        )

    async def _split_partition(self, request: wire.SplitPartition) -> wire.AnyReply:
        info = await self._services.broker.split_partition(
            request.topic, request.partition, request.layout
        )
        return wire.Topic(topic=info)

    async def _delete_topic(self, request: wire.DeleteTopic) -> wire.AnyReply:
        await self._services.broker.delete_topic(request.name)
        return wire.Done()

    async def _describe_topic(self, request: wire.DescribeTopic) -> wire.AnyReply:
        info = await self._services.broker.describe_topic(request.name, extents=request.extents)
        return wire.Topic(topic=info)

    async def _list_topics(self, _: wire.ListTopics) -> wire.AnyReply:
        topics = await self._services.broker.list_topics()
        return wire.Topics(topics=[one for one in topics if self._caller.sees_topic(one.name)])

    async def _open_producer(self, request: wire.OpenProducer) -> wire.AnyReply:
        name = self._caller.producer_name(request.name)
        identity, sequences = await self._services.broker.open_producer(name, request.topic)
        return wire.ProducerOpened(
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            last_sequences=sequences,
        )

    async def _find_offset(self, request: wire.FindOffset) -> wire.AnyReply:
        offset = await self._services.broker.find_offset(
            request.topic, request.partition, request.at, request.time_us
        )
        return wire.OffsetFound(offset=offset)

    async def _describe_node(self, _: wire.DescribeNode) -> wire.AnyReply:
        services = self._services
        return wire.Node(
            node=services.node,
            software=f"quiver/{__version__}",
            uptime_s=services.clock.monotonic() - services.started,
            topics=self._services.broker.topic_count,
            partitions=self._services.broker.partition_count,
            connections=services.connection_count(),
            counters=services.metrics.values() if self._caller.is_admin else {},
        )

    async def _list_alerts(self, _: wire.ListAlerts) -> wire.AnyReply:
        observing = self._services.observing
        alerts = wire.Alerts(firing=observing.firing, recent=observing.recent)
        self._leave_out(alerts)
        return alerts

    def _sees(self, alert: wire.AlertInfo) -> bool:
        """Whether the caller may know of what the alert is about; of the node, everybody may."""
        name, caller = alert.subject, self._caller
        return not name or caller.sees_subscription(name) or caller.sees_topic(name)

    async def _manage_tokens(
        self, request: wire.CreateToken | wire.ListTokens | wire.RevokeToken
    ) -> wire.AnyReply:
        return await manage_tokens(self._services.authority.tokens, request)

    async def _describe_cluster(self, _: wire.DescribeCluster) -> wire.AnyReply:
        services = self._services
        if services.cluster is not None:
            cluster = services.cluster.describe()
        else:
            cluster = node_alone(services.node, await services.broker.list_topics())
        return wire.Cluster(cluster=as_seen(cluster, self._caller.sees_topic))

    async def _manage_cluster(self, request: AnyClusterChange) -> wire.AnyReply:
        return await manage_cluster(self._services.cluster, request)


_HANDLERS: dict[type, Callable[[Calls, Any], Awaitable[wire.AnyReply]]] = {
    wire.Hello: Calls._hello,
    wire.CreateTopic: Calls._create_topic,
    wire.AlterTopic: Calls._alter_topic,
    wire.SplitPartition: Calls._split_partition,
    wire.DeleteTopic: Calls._delete_topic,
    wire.DescribeTopic: Calls._describe_topic,
    wire.ListTopics: Calls._list_topics,
    wire.OpenProducer: Calls._open_producer,
    wire.FindOffset: Calls._find_offset,
    wire.CreateToken: Calls._manage_tokens,
    wire.ListTokens: Calls._manage_tokens,
    wire.RevokeToken: Calls._manage_tokens,
    wire.DescribeNode: Calls._describe_node,
    wire.ListAlerts: Calls._list_alerts,
    wire.DescribeCluster: Calls._describe_cluster,
    wire.MovePartition: Calls._manage_cluster,
    wire.TransferLead: Calls._manage_cluster,
    wire.Decommission: Calls._manage_cluster,
}


def require_version(hello: wire.Hello) -> None:
    """Refuse a client that does not speak this node's version of the protocol."""
    if wire.PROTOCOL_VERSION not in hello.versions:
        raise UnsupportedProtocol(
            f"this node speaks version {wire.PROTOCOL_VERSION} of the protocol, "
            f"not {hello.versions[:10]}"
        )
