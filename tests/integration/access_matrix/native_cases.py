"""One case or more for each request of the native protocol, with what it needs, written by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from quiver import protocol
from quiver.model.batch import Bytes
from quiver.model.mirror.settings import MirrorSettings
from quiver.model.subscription import Push, SubscriptionSettings
from quiver.model.topic import TopicSettings
from tests.integration.access_matrix.grants import NEVER
from tests.integration.access_matrix.world import (
    GROUP,
    QUEUE,
    QUEUE_AGAIN,
    SPARE,
    SPARE_SUB,
    SUB,
    SUB_AGAIN,
    TARGET,
    TOPIC,
    TOPIC_AGAIN,
)
from tests.integration.native_peer import batch_of

_BATCH = batch_of(b"one")
_PUSH = Push(url="https://hooks.example.com/quiver")
_SETTINGS = SubscriptionSettings(topics=[TOPIC])
_MIRROR = MirrorSettings(source="quiver://127.0.0.1:1", topics=["none"], paused=True)
_SEEN = "publish|consume|admin"


class Case(msgspec.Struct):
    ask: Callable[[str], protocol.AnyRequest]
    """The request; it may be about a message with this id."""
    needs: tuple[str, ...]
    prepare: protocol.AnyRequest | None = None
    """Made before each call, because the call may delete it."""

    @property
    def body(self) -> Sequence[Bytes]:
        is_publish = isinstance(self.ask(""), protocol.Publish)
        return (_BATCH.head, _BATCH.body) if is_publish else ()


def case(
    ask: protocol.AnyRequest | Callable[[str], protocol.AnyRequest],
    *needs: str,
    prepare: protocol.AnyRequest | None = None,
) -> Case:
    if isinstance(ask, protocol.Request):
        return Case(lambda _: msgspec.structs.replace(ask), needs, prepare)
    return Case(ask, needs, prepare)


def _alter(**changes: object) -> protocol.AlterSubscription:
    return protocol.AlterSubscription(name=SUB, changes=changes)


def _create(name: str = SUB, **settings: object) -> protocol.CreateSubscription:
    changed = msgspec.structs.replace(_SETTINGS, **settings)
    return protocol.CreateSubscription(name=name, settings=changed, exist_ok=True)


def _create_queue(**settings: object) -> protocol.CreateQueue:
    return protocol.CreateQueue(
        name=QUEUE, topic=TopicSettings(), subscription=settings, exist_ok=True
    )


_COPY = protocol.Copy(
    topic=TARGET,
    partition=0,
    from_topic=TOPIC,
    from_number=1,
    from_partition=0,
    offsets=[0],
    producer_id=0,
    producer_epoch=0,
    sequence=0,
)
_TOPIC_INFO = protocol.TopicInfo(
    name=SPARE,
    number=1,
    layout=1,
    settings=TopicSettings(),
    created_us=0,
    partitions=[protocol.PartitionInfo(index=0, first_hash=0)],
)
_SUB_INFO = protocol.SubscriptionInfo(
    name=SPARE_SUB, number=1, settings=SubscriptionSettings(topics=[SPARE]), created_us=0
)
ADMIN_SUB, CONSUME_SUB = f"admin:subscription:{SUB}", f"consume:subscription:{SUB}"
_LETTERS = (f"publish:topic:{TARGET}", f"consume:topic:{TARGET}")

CASES = [
    # the connection
    case(protocol.Hello(versions=[1])),
    case(protocol.Ping()),
    case(protocol.Abandon(request=0)),
    # topics
    case(
        protocol.CreateTopic(name=TOPIC, settings=TopicSettings(), exist_ok=True),
        f"admin:topic:{TOPIC}",
    ),
    case(protocol.AlterTopic(name=TOPIC, changes={}), f"admin:topic:{TOPIC}"),
    case(protocol.SplitPartition(topic=SPARE, partition=0, layout=1), f"admin:topic:{SPARE}"),
    case(protocol.DeleteTopic(name="gone-t10x"), "admin:topic:gone-t10x", prepare=TOPIC_AGAIN),
    case(protocol.DescribeTopic(name=TOPIC), f"{_SEEN}:topic:{TOPIC}"),
    case(protocol.ListTopics()),
    # publish and read
    case(protocol.OpenProducer()),
    case(protocol.OpenProducer(topic=TOPIC), f"publish:topic:{TOPIC}"),
    case(protocol.OpenProducer(topic=TOPIC, name="x"), f"publish:topic:{TOPIC}"),
    case(protocol.OpenProducer(name="x"), "publish:topic:*"),
    case(protocol.Publish(topic=TARGET, partition=0), f"publish:topic:{TARGET}"),
    case(_COPY, f"publish:topic:{TARGET}", f"consume:topic:{TOPIC}"),
    case(protocol.Fetch(topic=TOPIC, partition=0, offset=0), f"consume:topic:{TOPIC}"),
    case(protocol.FindOffset(topic=TOPIC, partition=0, at="earliest"), f"consume:topic:{TOPIC}"),
    # subscriptions and queues
    case(_create(), ADMIN_SUB, f"consume:topic:{TOPIC}"),
    case(_create(topics=["*"]), ADMIN_SUB, "consume:topic:*"),
    case(_create(push=_PUSH), ADMIN_SUB, CONSUME_SUB, f"consume:topic:{TOPIC}"),
    case(_create(dead_letter=TARGET), ADMIN_SUB, CONSUME_SUB, f"consume:topic:{TOPIC}", *_LETTERS),
    case(_create_queue(), f"admin:topic:{QUEUE}", f"admin:subscription:{QUEUE}"),
    case(
        _create_queue(push={"url": _PUSH.url}),
        f"admin:topic:{QUEUE}",
        f"admin:subscription:{QUEUE}",
        f"consume:subscription:{QUEUE}",
    ),
    case(
        _create_queue(dead_letter=TARGET),
        f"admin:topic:{QUEUE}",
        f"admin:subscription:{QUEUE}",
        f"consume:subscription:{QUEUE}",
        *_LETTERS,
    ),
    case(_alter(), ADMIN_SUB),
    case(_alter(push=None), ADMIN_SUB),
    case(_alter(push={"url": "ftp://x"}), ADMIN_SUB, CONSUME_SUB),
    case(_alter(dead_letter=None), ADMIN_SUB, CONSUME_SUB),
    case(_alter(dead_letter=TARGET, max_deliveries=-1), ADMIN_SUB, CONSUME_SUB, *_LETTERS),
    case(_alter(topics=[TOPIC]), ADMIN_SUB, f"consume:topic:{TOPIC}"),
    case(_alter(topics="all"), ADMIN_SUB, "consume:topic:*"),
    case(
        protocol.DeleteSubscription(name="gone-s11x"),
        "admin:subscription:gone-s11x",
        prepare=SUB_AGAIN,
    ),
    case(
        protocol.DeleteSubscription(name=SPARE),
        f"admin:subscription:{SPARE}",
        f"admin:topic:{SPARE}",
        prepare=QUEUE_AGAIN,
    ),
    case(protocol.DescribeSubscription(name=SUB), f"{_SEEN}:subscription:{SUB}"),
    case(protocol.ListSubscriptions()),
    # consumers
    case(protocol.Receive(subscription=SUB, messages_max=1), CONSUME_SUB),
    case(protocol.AwaitReady(subscription=SUB), CONSUME_SUB),
    case(protocol.Ack(subscription=SUB, settlements=[]), CONSUME_SUB),
    case(protocol.Hold(subscription=SUB, settlements=[], transaction=1), CONSUME_SUB),
    case(protocol.Nack(subscription=SUB, settlements=[]), CONSUME_SUB),
    case(protocol.Reject(subscription=SUB, settlements=[]), CONSUME_SUB),
    case(protocol.Extend(subscription=SUB, settlements=[], visibility_ms=1), CONSUME_SUB),
    case(protocol.Return(subscription=SUB, settlements=[]), CONSUME_SUB),
    case(protocol.Consume(subscription=SUB, window=0), CONSUME_SUB),
    case(protocol.Progress(session=9999)),
    case(protocol.Heartbeat(subscription=GROUP, consumer="c"), f"consume:subscription:{GROUP}"),
    case(protocol.Leave(subscription=GROUP, consumer="c"), f"consume:subscription:{GROUP}"),
    # messages
    case(protocol.Peek(subscription=SUB, messages_max=3), CONSUME_SUB),
    case(protocol.ReadState(subscription=SUB), CONSUME_SUB),
    case(lambda id: protocol.FindMessage(topic=TOPIC, message_id=id), f"consume:topic:{TOPIC}"),
    case(protocol.Cancel(topic=TOPIC, ids=[]), f"publish|admin:topic:{TOPIC}"),
    case(protocol.Seek(subscription=SPARE_SUB, at="earliest"), f"admin:subscription:{SPARE_SUB}"),
    case(protocol.Purge(subscription=SPARE_SUB), f"admin:subscription:{SPARE_SUB}"),
    case(protocol.Redrive(subscription=QUEUE, dry_run=True), f"admin:subscription:{QUEUE}"),
    case(
        protocol.Redrive(subscription=QUEUE, to=TARGET, dry_run=True),
        f"admin:subscription:{QUEUE}",
        f"consume:subscription:{QUEUE}",
        f"publish:topic:{TARGET}",
    ),
    # tokens, the node and the cluster
    case(protocol.CreateToken(name="new", grants=["publish:x"]), "admin:cluster:*"),
    case(protocol.ListTokens(), "admin:cluster:*"),
    case(protocol.RevokeToken(token_id="0" * 16), "admin:cluster:*"),
    case(protocol.DescribeNode()),
    case(protocol.ReadMetrics(), "consume|admin:cluster:*"),
    case(protocol.ListAlerts()),
    case(protocol.DescribeCluster()),
    case(protocol.Announce(name="edge-1", instance="0"), "consume|admin:cluster:*"),
    case(protocol.MovePartition(topic=TOPIC, partition=0, nodes=["a"]), "admin:cluster:*"),
    case(protocol.TransferLead(topic=TOPIC, partition=0), "admin:cluster:*"),
    case(protocol.Decommission(node="a"), "admin:cluster:*"),
    case(protocol.RotatePeerSecret(), "admin:cluster:*"),
    case(protocol.AskPeer(question=b""), NEVER),
    # transactions; whoever has not begun one lacks its token
    case(protocol.BeginTransactions()),
    case(protocol.BeginTransactions(name="x")),
    case(protocol.JoinTransaction(transaction=1 << 20, token=b"forged"), NEVER),
    case(protocol.EndTransaction(transaction=1 << 20, token=b"forged", is_commit=True), NEVER),
    case(protocol.AbortTransaction(transaction=1 << 20), "admin:cluster:*"),
    case(protocol.EndTransactionAfter(transaction=1 << 20, token=b"forged", is_commit=True), NEVER),
    case(protocol.DescribeTransaction(transaction=1 << 20)),
    case(protocol.ResolveTransactions(transactions=[1 << 20]), NEVER),
    case(protocol.CloseTransactions(topic=TOPIC, partition=0, outcomes={1 << 20: True}), NEVER),
    # backups
    case(
        protocol.RestoreTopic(name=SPARE, backup="b", info=_TOPIC_INFO),
        "admin:cluster:*",
    ),
    case(protocol.RestoreEntries(topic=SPARE, partition=0), "admin:cluster:*"),
    case(protocol.RestoreSubscription(name=SPARE_SUB, info=_SUB_INFO), "admin:cluster:*"),
    case(
        protocol.RestoreState(subscription=SPARE_SUB, topic=SPARE, partition=0, next_offset=0),
        "admin:cluster:*",
    ),
    case(protocol.FinishRestore(topic=SPARE), "admin:cluster:*"),
    case(protocol.ExportTokens(), "admin:cluster:*"),
    case(
        protocol.RestoreToken(name="new", token_id="0" * 16, grants=["publish:x"], created_us=0),
        "admin:cluster:*",
    ),
    # mirrors
    case(protocol.DescribeSource(topics=["*"], with_subscriptions=True)),
    case(protocol.FetchLog(topic=TOPIC, partition=0, offset=0), f"consume:topic:{TOPIC}"),
    case(protocol.FetchDeliveryState(topic=TOPIC, partition=0), f"consume:topic:{TOPIC}"),
    case(protocol.FenceTopic(name=SPARE, moved_to=""), f"admin:topic:{SPARE}"),
    case(
        protocol.CreateMirror(name="new", settings=_MIRROR),
        "admin:cluster:*",
    ),
    case(protocol.AlterMirror(name="none", changes={"paused": True}), "admin:cluster:*"),
    case(protocol.DeleteMirror(name="none"), "admin:cluster:*"),
    case(protocol.DescribeMirror(name="none"), "consume|admin:cluster:*"),
    case(protocol.ListMirrors(), "consume|admin:cluster:*"),
    case(protocol.PromoteTopics(topics=[SPARE]), f"admin:topic:{SPARE}"),
]
TELLS_ALL = (
    protocol.ReadMetrics,
    protocol.ListTokens,
    protocol.ExportTokens,
    protocol.ListMirrors,
    protocol.DescribeMirror,
)
"""Who may ask for these sees the names of everything."""
