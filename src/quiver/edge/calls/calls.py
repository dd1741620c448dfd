"""Requests that are answered with one reply: about topics, subscriptions, tokens, nodes.

Who asks has been let in; what they may not know of is left out of listings here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from quiver import protocol
from quiver.edge.auth.caller import Caller
from quiver.edge.auth.principal import PEER
from quiver.edge.calls.cluster import AnyClusterChange, as_seen, manage_cluster, node_alone
from quiver.edge.calls.fan_out import FanOut
from quiver.edge.calls.subscriptions import find, manage, peek, push_url, read_state
from quiver.edge.calls.tokens import manage_tokens
from quiver.edge.services import NodeServices
from quiver.errors import UnsupportedProtocol
from quiver.metrics.exposition import CONTENT_TYPE
from quiver.model.batch import Bytes
from quiver.version import __version__

PEER_REQUESTS_MAX = 65_536
"""How many requests of another node may be unanswered: each log that it copies has one."""


class Calls:
    def __init__(self, services: NodeServices, caller: Caller) -> None:
        self._services = services
        self._caller = caller

    async def reply_to(
        self, request: protocol.AnyRequest
    ) -> tuple[protocol.AnyReply, Sequence[Bytes]]:
        fan_out = FanOut(self._services)
        if not fan_out.is_needed(self._caller):
            return await self.reply_here(request)
        reply, body = await fan_out.reply_to(request, lambda: self.reply_here(request))
        self._leave_out(reply)
        return reply, body

    def _leave_out(self, reply: protocol.AnyReply) -> None:
        """Take from what this node or another has to say what the caller may not know of."""
        if isinstance(reply, protocol.MessageFound):
            sees = self._caller.sees_subscription
            reply.statuses = [one for one in reply.statuses if sees(one.subscription)]
        elif isinstance(reply, protocol.Alerts):
            reply.firing = [one for one in reply.firing if self._sees(one)]
            reply.recent = [one for one in reply.recent if self._sees(one)]

    async def reply_here(
        self, request: protocol.AnyRequest
    ) -> tuple[protocol.AnyReply, Sequence[Bytes]]:
        """What this node alone has to say."""
        if isinstance(request, protocol.CreateTopic | protocol.CreateQueue):
            self._caller.require_room_for_topic(request.name, self._services.broker.topics.names)
        handler = _HANDLERS.get(type(request))
        if handler is not None:
            return await handler(self, request), ()
        if isinstance(request, protocol.ReadMetrics):
            return protocol.Metrics(media_type=CONTENT_TYPE), [
                await self._services.observability.text()
            ]
        if isinstance(request, protocol.Peek):
            return await peek(self._services.broker, request)
        if isinstance(request, protocol.FindMessage):
            found, body = await find(self._services.broker, request)
            self._leave_out(found)
            return found, body
        if isinstance(request, protocol.ReadState):
            return await read_state(self._services.broker, request)
        self._services.require_target(push_url(request))
        reply = await manage(self._services.broker, request)
        if isinstance(reply, protocol.Subscriptions):
            reply.subscriptions = [
                one for one in reply.subscriptions if self._caller.sees_subscription(one.name)
            ]
        return reply, ()

    async def _hello(self, request: protocol.Hello) -> protocol.AnyReply:
        require_version(request)
        limits = self._services.limits
        return protocol.Welcome(
            version=protocol.PROTOCOL_VERSION,
            node=self._services.node,
            software=f"quiver/{__version__}",
            frame_bytes_max=limits.request_bytes_max,
            requests_max=PEER_REQUESTS_MAX
            if self._caller.principal is PEER
            else limits.requests_max,
        )

    async def _create_topic(self, request: protocol.CreateTopic) -> protocol.AnyReply:
        info = await self._services.broker.topics.create(
            request.name, request.settings, exist_ok=request.exist_ok
        )
        return protocol.Topic(topic=info)

    async def _alter_topic(self, request: protocol.AlterTopic) -> protocol.AnyReply:
        return protocol.Topic(
            topic=await self._services.broker.topics.alter(request.name, request.changes)
        )

    async def _split_partition(self, request: protocol.SplitPartition) -> protocol.AnyReply:
        info = await self._services.broker.topics.split(
            request.topic, request.partition, request.layout
        )
        return protocol.Topic(topic=info)

    async def _delete_topic(self, request: protocol.DeleteTopic) -> protocol.AnyReply:
        await self._services.broker.topics.delete(request.name)
        return protocol.Done()

    async def _describe_topic(self, request: protocol.DescribeTopic) -> protocol.AnyReply:
        info = await self._services.broker.topics.describe(request.name, extents=request.extents)
        return protocol.Topic(topic=info)

    async def _list_topics(self, _: protocol.ListTopics) -> protocol.AnyReply:
        topics = self._services.broker.topics.infos()
        return protocol.Topics(topics=[one for one in topics if self._caller.sees_topic(one.name)])

    async def _open_producer(self, request: protocol.OpenProducer) -> protocol.AnyReply:
        name = self._caller.producer_name(request.name)
        identity, sequences = await self._services.broker.publisher.open_producer(
            name, request.topic
        )
        return protocol.ProducerOpened(
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            last_sequences=sequences,
        )

    async def _find_offset(self, request: protocol.FindOffset) -> protocol.AnyReply:
        offset = await self._services.broker.reader.find_offset(
            request.topic, request.partition, request.at, request.time_us
        )
        return protocol.OffsetFound(offset=offset)

    async def _describe_node(self, _: protocol.DescribeNode) -> protocol.AnyReply:
        services = self._services
        return protocol.Node(
            node=services.node,
            software=f"quiver/{__version__}",
            uptime_s=services.clock.monotonic() - services.started,
            topics=self._services.broker.topics.count,
            partitions=self._services.broker.partition_count,
            connections=services.connection_count(),
            counters=services.metrics.values() if self._caller.is_admin else {},
        )

    async def _list_alerts(self, _: protocol.ListAlerts) -> protocol.AnyReply:
        observability = self._services.observability
        alerts = protocol.Alerts(firing=observability.firing, recent=observability.recent)
        self._leave_out(alerts)
        return alerts

    def _sees(self, alert: protocol.AlertInfo) -> bool:
        """Whether the caller may know of what the alert is about; of the node, everybody may."""
        name, caller = alert.subject, self._caller
        return not name or caller.sees_subscription(name) or caller.sees_topic(name)

    async def _manage_tokens(
        self, request: protocol.CreateToken | protocol.ListTokens | protocol.RevokeToken
    ) -> protocol.AnyReply:
        return await manage_tokens(self._services.authority.tokens, request)

    async def _describe_cluster(self, _: protocol.DescribeCluster) -> protocol.AnyReply:
        services = self._services
        if services.cluster is not None:
            cluster = services.cluster.describe()
        else:
            cluster = node_alone(services.node, services.broker.topics.infos())
        return protocol.Cluster(cluster=as_seen(cluster, self._caller.sees_topic))

    async def _manage_cluster(self, request: AnyClusterChange) -> protocol.AnyReply:
        return await manage_cluster(self._services.cluster, request)


_HANDLERS: dict[type, Callable[[Calls, Any], Awaitable[protocol.AnyReply]]] = {
    protocol.Hello: Calls._hello,
    protocol.CreateTopic: Calls._create_topic,
    protocol.AlterTopic: Calls._alter_topic,
    protocol.SplitPartition: Calls._split_partition,
    protocol.DeleteTopic: Calls._delete_topic,
    protocol.DescribeTopic: Calls._describe_topic,
    protocol.ListTopics: Calls._list_topics,
    protocol.OpenProducer: Calls._open_producer,
    protocol.FindOffset: Calls._find_offset,
    protocol.CreateToken: Calls._manage_tokens,
    protocol.ListTokens: Calls._manage_tokens,
    protocol.RevokeToken: Calls._manage_tokens,
    protocol.DescribeNode: Calls._describe_node,
    protocol.ListAlerts: Calls._list_alerts,
    protocol.DescribeCluster: Calls._describe_cluster,
    protocol.MovePartition: Calls._manage_cluster,
    protocol.TransferLead: Calls._manage_cluster,
    protocol.Decommission: Calls._manage_cluster,
}


def require_version(hello: protocol.Hello) -> None:
    """Refuse a client that does not speak this node's version of the protocol."""
    if protocol.PROTOCOL_VERSION not in hello.versions:
        raise UnsupportedProtocol(
            f"this node speaks version {protocol.PROTOCOL_VERSION} of the protocol, "
            f"not {hello.versions[:10]}"
        )
