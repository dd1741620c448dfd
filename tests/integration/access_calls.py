"""Every call of the protocol, made by callers of every sort, over every edge that carries calls.

``SAMPLES`` has one valid request for each call, all of them about team a's things. An ``Edge`` makes
such a request with some credentials and tells how it was answered: another edge joins by being added
to ``EDGES``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from quiver.client.channel import Channel
from quiver.edge.access.credentials import Credentials
from quiver.edge.in_process import InProcessChannel
from quiver.errors import QuiverError
from quiver.model import wire
from quiver.model.batch import Bytes
from quiver.model.subscription import SubscriptionSettings
from quiver.model.topic import TopicSettings
from tests.integration.edge_node import Running
from tests.integration.native_peer import batch_of

DONE = "done"
"""What an edge tells of a request that was carried out."""
NO_SUCH_MESSAGE = "invalid_request"
"""What it tells of the sample that looks for one, by what is not an id."""
REFUSALS = {"unauthenticated", "permission_denied", "quota_exceeded"}

_BATCH = batch_of(b"one")
Sample = Callable[[], wire.AnyRequest]
SAMPLES: dict[type, Sample] = {
    wire.Hello: lambda: wire.Hello(versions=[1]),
    wire.Ping: wire.Ping,
    wire.Abandon: lambda: wire.Abandon(request=0),
    wire.DescribeNode: wire.DescribeNode,
    wire.ReadMetrics: wire.ReadMetrics,
    wire.ListAlerts: wire.ListAlerts,
    wire.ListTopics: wire.ListTopics,
    wire.ListSubscriptions: wire.ListSubscriptions,
    wire.CreateTopic: lambda: wire.CreateTopic(
        name="a.orders", settings=TopicSettings(), exist_ok=True
    ),
    wire.AlterTopic: lambda: wire.AlterTopic(name="a.orders", changes={}),
    wire.SplitPartition: lambda: wire.SplitPartition(topic="a.orders", partition=0, layout=1),
    wire.DescribeTopic: lambda: wire.DescribeTopic(name="a.orders"),
    wire.OpenProducer: lambda: wire.OpenProducer(topic="a.orders"),
    wire.Publish: lambda: wire.Publish(topic="a.orders", partition=0),
    wire.Copy: lambda: wire.Copy(
        topic="a.orders",
        partition=0,
        from_topic="a.orders",
        from_number=1,
        from_partition=0,
        offsets=[0],
        producer_id=0,
        producer_epoch=0,
        sequence=0,
    ),
    wire.Fetch: lambda: wire.Fetch(topic="a.orders", partition=0, offset=0),
    wire.FindOffset: lambda: wire.FindOffset(topic="a.orders", partition=0, at="earliest"),
    wire.CreateSubscription: lambda: wire.CreateSubscription(
        name="a.billing", settings=SubscriptionSettings(topics=["a.orders"]), exist_ok=True
    ),
    wire.CreateQueue: lambda: wire.CreateQueue(
        name="a.emails", topic=TopicSettings(), exist_ok=True
    ),
    wire.AlterSubscription: lambda: wire.AlterSubscription(name="a.billing", changes={}),
    wire.DescribeSubscription: lambda: wire.DescribeSubscription(name="a.billing"),
    wire.Receive: lambda: wire.Receive(subscription="a.billing"),
    wire.Ack: lambda: wire.Ack(subscription="a.billing", settlements=[]),
    wire.Nack: lambda: wire.Nack(subscription="a.billing", settlements=[]),
    wire.Extend: lambda: wire.Extend(subscription="a.billing", settlements=[], visibility_ms=1),
    wire.Return: lambda: wire.Return(subscription="a.billing", settlements=[]),
    wire.Heartbeat: lambda: wire.Heartbeat(subscription="a.group", consumer="c"),
    wire.Leave: lambda: wire.Leave(subscription="a.group", consumer="c"),
    wire.Peek: lambda: wire.Peek(subscription="a.billing"),
    wire.ReadState: lambda: wire.ReadState(subscription="a.billing"),
    wire.FindMessage: lambda: wire.FindMessage(topic="a.orders", message_id="x"),
    wire.Cancel: lambda: wire.Cancel(topic="a.orders", ids=[]),
    wire.Seek: lambda: wire.Seek(subscription="a.billing", at="latest"),
    wire.Purge: lambda: wire.Purge(subscription="a.billing"),
    wire.Redrive: lambda: wire.Redrive(subscription="a.billing"),
    wire.CreateToken: lambda: wire.CreateToken(name="new", grants=["publish:x"]),
    wire.ListTokens: wire.ListTokens,
    wire.RevokeToken: lambda: wire.RevokeToken(token_id="0" * 16),
    wire.DescribeCluster: wire.DescribeCluster,
    wire.AskPeer: lambda: wire.AskPeer(question=b""),
    wire.MovePartition: lambda: wire.MovePartition(topic="a.orders", partition=0, nodes=["node-1"]),
    wire.TransferLead: lambda: wire.TransferLead(topic="a.orders", partition=0),
    wire.Decommission: lambda: wire.Decommission(node="node-1"),
    wire.DeleteSubscription: lambda: wire.DeleteSubscription(name="a.spare"),
    wire.DeleteTopic: lambda: wire.DeleteTopic(name="a.spare-topic"),
}
CLUSTER_CHANGES = {
    wire.MovePartition,
    wire.TransferLead,
    wire.Decommission,
}
OF_THE_CLUSTER = CLUSTER_CHANGES | {
    wire.AskPeer,
    wire.CreateToken,
    wire.ListTokens,
    wire.RevokeToken,
    wire.ReadMetrics,
}
"""Calls about what belongs to no team."""
FOR_ANYBODY_KNOWN = {
    wire.Hello,
    wire.Ping,
    wire.Abandon,
    wire.DescribeNode,
    wire.DescribeCluster,
    wire.ListAlerts,
    wire.ListTopics,
    wire.ListSubscriptions,
}
"""Calls that need no grant: listings leave out what the caller may not see."""
FOR_READERS = FOR_ANYBODY_KNOWN | {
    wire.DescribeTopic,
    wire.Fetch,
    wire.FindOffset,
    wire.DescribeSubscription,
    wire.Receive,
    wire.Ack,
    wire.Nack,
    wire.Extend,
    wire.Return,
    wire.Heartbeat,
    wire.Leave,
    wire.Peek,
    wire.ReadState,
    wire.FindMessage,
}


def body_of(request: wire.AnyRequest) -> Sequence[Bytes]:
    return (_BATCH.head, _BATCH.body) if isinstance(request, wire.Publish) else ()


Edge = Callable[[Running, "str | None", wire.AnyRequest], Awaitable[str]]


async def over_native(run: Running, token: str | None, request: wire.AnyRequest) -> str:
    """On a connection of its own, whose hello has the token."""
    peer = await run.peer(greet=False)
    try:
        await peer.greet(token)
        reply, _ = await peer.answer(peer.request(request, body_of(request)))
    except QuiverError as error:
        return error.code
    finally:
        await peer.close()
    return reply.code if isinstance(reply, wire.Failed) else DONE


async def in_process(run: Running, token: str | None, request: wire.AnyRequest) -> str:
    """As the edges over HTTP and WebSocket do: authenticated, then in a session of the principal's."""
    services = run.node.services
    assert services is not None
    try:
        principal = services.authority.authenticate(Credentials(token=token))
        channel: Channel = InProcessChannel(services, principal)
        try:
            await channel.call(request, body_of(request))
        finally:
            await channel.close()
    except QuiverError as error:
        return error.code
    return DONE


EDGES: dict[str, Edge] = {"native": over_native, "in_process": in_process}
