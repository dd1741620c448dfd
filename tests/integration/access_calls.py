"""Every call of the protocol, made by callers of every sort, over every edge that carries calls.

``SAMPLES`` has one valid request for each call, all of them about team a's things. An ``Edge`` makes
such a request with some credentials and tells how it was answered: another edge joins by being added
to ``EDGES``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from quiver import protocol
from quiver.client.transport.channel import Channel
from quiver.edge.auth.credentials import Credentials
from quiver.edge.in_process import InProcessChannel
from quiver.errors import QuiverError
from quiver.model.batch import Bytes
from quiver.model.subscription import SubscriptionSettings
from quiver.model.topic import TopicSettings
from tests.integration.edge_node import Running
from tests.integration.native_peer import batch_of

DONE = "done"
"""What an edge tells of a request that was carried out."""
NO_SUCH_MESSAGE = "invalid_request"
NO_SUCH_SESSION = "session_not_found"
"""Everybody may speak of a session, and only of those of the same connection."""
"""What it tells of the sample that looks for one, by what is not an id."""
REFUSALS = {"unauthenticated", "permission_denied", "quota_exceeded"}

_BATCH = batch_of(b"one")
Sample = Callable[[], protocol.AnyRequest]
SAMPLES: dict[type, Sample] = {
    protocol.Hello: lambda: protocol.Hello(versions=[1]),
    protocol.Ping: protocol.Ping,
    protocol.Abandon: lambda: protocol.Abandon(request=0),
    protocol.DescribeNode: protocol.DescribeNode,
    protocol.ReadMetrics: protocol.ReadMetrics,
    protocol.ListAlerts: protocol.ListAlerts,
    protocol.ListTopics: protocol.ListTopics,
    protocol.ListSubscriptions: protocol.ListSubscriptions,
    protocol.CreateTopic: lambda: protocol.CreateTopic(
        name="a.orders", settings=TopicSettings(), exist_ok=True
    ),
    protocol.AlterTopic: lambda: protocol.AlterTopic(name="a.orders", changes={}),
    protocol.SplitPartition: lambda: protocol.SplitPartition(
        topic="a.orders", partition=0, layout=1
    ),
    protocol.DescribeTopic: lambda: protocol.DescribeTopic(name="a.orders"),
    protocol.OpenProducer: lambda: protocol.OpenProducer(topic="a.orders"),
    protocol.Publish: lambda: protocol.Publish(topic="a.orders", partition=0),
    protocol.Copy: lambda: protocol.Copy(
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
    protocol.Fetch: lambda: protocol.Fetch(topic="a.orders", partition=0, offset=0),
    protocol.FindOffset: lambda: protocol.FindOffset(topic="a.orders", partition=0, at="earliest"),
    protocol.CreateSubscription: lambda: protocol.CreateSubscription(
        name="a.billing", settings=SubscriptionSettings(topics=["a.orders"]), exist_ok=True
    ),
    protocol.CreateQueue: lambda: protocol.CreateQueue(
        name="a.emails", topic=TopicSettings(), exist_ok=True
    ),
    protocol.AlterSubscription: lambda: protocol.AlterSubscription(name="a.billing", changes={}),
    protocol.DescribeSubscription: lambda: protocol.DescribeSubscription(name="a.billing"),
    protocol.Receive: lambda: protocol.Receive(subscription="a.billing"),
    protocol.AwaitReady: lambda: protocol.AwaitReady(subscription="a.billing"),
    protocol.Ack: lambda: protocol.Ack(subscription="a.billing", settlements=[]),
    protocol.Nack: lambda: protocol.Nack(subscription="a.billing", settlements=[]),
    protocol.Reject: lambda: protocol.Reject(subscription="a.billing", settlements=[]),
    protocol.Extend: lambda: protocol.Extend(
        subscription="a.billing", settlements=[], visibility_ms=1
    ),
    protocol.Return: lambda: protocol.Return(subscription="a.billing", settlements=[]),
    protocol.Consume: lambda: protocol.Consume(subscription="a.billing", window=0),
    protocol.Progress: lambda: protocol.Progress(session=99),
    protocol.Heartbeat: lambda: protocol.Heartbeat(subscription="a.group", consumer="c"),
    protocol.Leave: lambda: protocol.Leave(subscription="a.group", consumer="c"),
    protocol.Peek: lambda: protocol.Peek(subscription="a.billing"),
    protocol.ReadState: lambda: protocol.ReadState(subscription="a.billing"),
    protocol.FindMessage: lambda: protocol.FindMessage(topic="a.orders", message_id="x"),
    protocol.Cancel: lambda: protocol.Cancel(topic="a.orders", ids=[]),
    protocol.Seek: lambda: protocol.Seek(subscription="a.billing", at="latest"),
    protocol.Purge: lambda: protocol.Purge(subscription="a.billing"),
    protocol.Redrive: lambda: protocol.Redrive(subscription="a.billing"),
    protocol.CreateToken: lambda: protocol.CreateToken(name="new", grants=["publish:x"]),
    protocol.ListTokens: protocol.ListTokens,
    protocol.RevokeToken: lambda: protocol.RevokeToken(token_id="0" * 16),
    protocol.DescribeCluster: protocol.DescribeCluster,
    protocol.Announce: lambda: protocol.Announce(name="edge-1", instance="0"),
    protocol.AskPeer: lambda: protocol.AskPeer(question=b""),
    protocol.MovePartition: lambda: protocol.MovePartition(
        topic="a.orders", partition=0, nodes=["node-1"]
    ),
    protocol.TransferLead: lambda: protocol.TransferLead(topic="a.orders", partition=0),
    protocol.Decommission: lambda: protocol.Decommission(node="node-1"),
    protocol.DeleteSubscription: lambda: protocol.DeleteSubscription(name="a.spare"),
    protocol.DeleteTopic: lambda: protocol.DeleteTopic(name="a.spare-topic"),
}
CLUSTER_CHANGES = {
    protocol.MovePartition,
    protocol.TransferLead,
    protocol.Decommission,
}
OF_THE_CLUSTER = CLUSTER_CHANGES | {
    protocol.AskPeer,
    protocol.CreateToken,
    protocol.ListTokens,
    protocol.RevokeToken,
    protocol.ReadMetrics,
    protocol.Announce,
}
"""Calls about what belongs to no team."""
FOR_ANYBODY_KNOWN = {
    protocol.Hello,
    protocol.Ping,
    protocol.Abandon,
    protocol.DescribeNode,
    protocol.DescribeCluster,
    protocol.ListAlerts,
    protocol.ListTopics,
    protocol.ListSubscriptions,
    protocol.Progress,
}
"""Calls that need no grant: listings leave out what the caller may not see."""
FOR_READERS = FOR_ANYBODY_KNOWN | {
    protocol.DescribeTopic,
    protocol.Fetch,
    protocol.FindOffset,
    protocol.DescribeSubscription,
    protocol.Receive,
    protocol.AwaitReady,
    protocol.Ack,
    protocol.Nack,
    protocol.Reject,
    protocol.Extend,
    protocol.Return,
    protocol.Consume,
    protocol.Heartbeat,
    protocol.Leave,
    protocol.Peek,
    protocol.ReadState,
    protocol.FindMessage,
}


def body_of(request: protocol.AnyRequest) -> Sequence[Bytes]:
    return (_BATCH.head, _BATCH.body) if isinstance(request, protocol.Publish) else ()


Edge = Callable[[Running, "str | None", protocol.AnyRequest], Awaitable[str]]


async def over_native(run: Running, token: str | None, request: protocol.AnyRequest) -> str:
    """On a connection of its own, whose hello has the token."""
    peer = await run.peer(greet=False)
    try:
        await peer.greet(token)
        reply, _ = await peer.answer(peer.request(request, body_of(request)))
    except QuiverError as error:
        return error.code
    finally:
        await peer.close()
    return reply.code if isinstance(reply, protocol.Failed) else DONE


async def in_process(run: Running, token: str | None, request: protocol.AnyRequest) -> str:
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
