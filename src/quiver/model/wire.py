"""The calls of the native protocol: what a client may ask and what a node answers.

Requests and replies are msgpack maps, decoded and checked by msgspec in one step. Every request has
an ``id`` that its reply repeats; replies come in any order. Unknown fields are ignored, so that
either side may be newer. Fields are only ever added, with defaults.
"""

from __future__ import annotations

from typing import Any

import msgspec

from quiver.errors import ProtocolError, QuiverError, UnknownCall, error_from
from quiver.model.subscription import SubscriptionSettings
from quiver.model.topic import Acks, TopicSettings

PROTOCOL_VERSION = 1


class Request(msgspec.Struct, kw_only=True, tag_field="call"):
    id: int = 0


class Reply(msgspec.Struct, kw_only=True, tag_field="reply"):
    id: int = 0


class Hello(Request, tag="hello", omit_defaults=True):
    """The first request of a connection. Only the first one's token counts."""

    versions: list[int]
    client: str = ""
    token: str | None = None

    def __repr__(self) -> str:
        return f"Hello(id={self.id}, versions={self.versions}, client={self.client!r})"


class Welcome(Reply, tag="welcome"):
    version: int
    node: str
    software: str
    frame_bytes_max: int
    requests_max: int
    """How many requests may be unanswered at a time."""


class Ping(Request, tag="ping"):
    pass


class Abandon(Request, tag="abandon"):
    """Nobody waits for the answer to this receive or fetch any more: it ends and takes nothing."""

    request: int


class Done(Reply, tag="done"):
    """The call was carried out, and there is nothing more to say."""


class Failed(Reply, tag="failed"):
    code: str
    message: str
    details: dict[str, Any] = {}
    retryable: bool = False


class ReplicaInfo(msgspec.Struct, frozen=True):
    """A node that has everything of a partition that was confirmed, and may be read from."""

    address: str
    zone: str


class PartitionInfo(msgspec.Struct, kw_only=True):
    index: int
    first_hash: int
    """The first key hash of its range, which ends where the next partition's begins."""
    leader: str | None = None
    """Where the native protocol is spoken, as host:port; ``None`` means the node asked."""
    start_offset: int | None = None
    next_offset: int | None = None
    bytes: int | None = None
    in_sync: list[ReplicaInfo] = []
    """In a cluster: where committed messages can be read, the leader among them."""
    parent: int | None = None
    """The partition it was split from; ``None`` if it was there from the beginning."""
    parent_offset: int | None = None
    """From here on the parent holds no keys of this partition's range: what is before comes first."""


class TopicInfo(msgspec.Struct, kw_only=True):
    name: str
    number: int
    """Never given to another topic, even one of the same name later."""
    layout: int
    """Grows whenever partitions change; publishes name the one they were routed by."""
    settings: TopicSettings
    created_us: int
    partitions: list[PartitionInfo]


class CreateTopic(Request, tag="create_topic"):
    name: str
    settings: TopicSettings
    exist_ok: bool = False
    """An existing topic with the same settings is not an error."""


class AlterTopic(Request, tag="alter_topic"):
    name: str
    changes: dict[str, Any]
    """Settings by name, as in ``TopicSettings``; ``retention`` may be given in part."""


class SplitPartition(Request, tag="split_partition"):
    """Have a partition give half of its range of key hashes to a new one. Its leader does it."""

    topic: str
    partition: int
    layout: int
    """The layout that the caller knows: one that has been split since is not split again."""


class DeleteTopic(Request, tag="delete_topic"):
    name: str


class DescribeTopic(Request, tag="describe_topic"):
    name: str
    extents: bool = True
    """Whether it matters where each partition begins and ends: then other nodes may be asked."""


class ListTopics(Request, tag="list_topics"):
    pass


class Topic(Reply, tag="topic"):
    topic: TopicInfo


class Topics(Reply, tag="topics"):
    topics: list[TopicInfo]


class OpenProducer(Request, tag="open_producer"):
    """A session for idempotent publishing. A name makes it outlive the process."""

    name: str | None = None
    topic: str | None = None
    """With a name: for which topic to tell the last sequences."""


class ProducerOpened(Reply, tag="producer_opened"):
    producer_id: int
    producer_epoch: int
    last_sequences: dict[int, int] = {}
    """By partition: the highest ``sequence`` column value that this name has stored there."""


class Publish(Request, tag="publish"):
    """Store a batch. The body is the producer's part of the envelope and the Arrow bytes."""

    topic: str
    partition: int
    acks: Acks | None = None
    timeout_ms: int = 30_000
    layout: int = 0
    """The layout it was routed by; 0 if routing does not matter."""


class Repeat(msgspec.Struct, array_like=True, frozen=True):
    """Where a message is that was stored before."""

    offset: int
    append_time: int


class Published(Reply, tag="published"):
    base_offset: int
    append_time: int
    topic_number: int
    duplicate: bool = False
    """It had been stored before, at this offset; nothing was stored now."""
    repeats: dict[int, Repeat] = {}
    """Messages that were stored before, found by their ``dedup_id``: by their place in the batch, the
    offset and the time of storage of each. The others follow each other from ``base_offset`` on."""


class Copy(Request, tag="copy"):
    """Store entries of a partition in another one, which the same node leads: the same bytes.

    They become the next batches of a producer. Who repeats a copy adds nothing.
    """

    topic: str
    partition: int
    from_topic: str
    from_number: int
    """The number of the topic that is copied from: one made anew under its name has another."""
    from_partition: int
    offsets: list[int]
    """The first offset of each entry, in the order in which they are stored."""
    producer_id: int
    producer_epoch: int
    sequence: int
    """Of the first message of the first entry; the others follow."""
    timeout_ms: int = 30_000


class Copied(Reply, tag="copied"):
    """All of them are stored, now or before."""

    entries: int
    messages: int
    bytes: int


class Fetch(Request, tag="fetch"):
    """Read entries from an offset on. Waits up to ``wait_ms`` while there is nothing."""

    topic: str
    partition: int
    offset: int
    bytes_max: int = 4 << 20
    wait_ms: int = 0
    any_replica: bool = False
    """A replica that does not lead may answer, with as much as it knows to be committed."""


class Fetched(Reply, tag="fetched"):
    """The body is whole entries; the first may begin before the offset asked for."""

    start_offset: int
    next_offset: int
    topic_number: int
    layout: int = 0
    """The topic's, as the node knows it: whoever reads all partitions learns that there are more."""


class FindOffset(Request, tag="find_offset"):
    """An offset by name (``earliest``, ``latest``) or the first at or after a time."""

    topic: str
    partition: int
    at: str | None = None
    time_us: int | None = None


class OffsetFound(Reply, tag="offset_found"):
    offset: int


class SubscriptionInfo(msgspec.Struct, kw_only=True):
    name: str
    number: int
    """Never given to another subscription, even one of the same name later."""
    settings: SubscriptionSettings
    created_us: int
    is_queue: bool = False
    ready: int | None = None
    """Messages that could be delivered now, as far as they have been looked at."""
    delayed: int | None = None
    leased: int | None = None
    dead: int | None = None
    """Messages that are in the dead-letter topic, or on their way there."""
    unseen: int | None = None
    """Messages that are stored and have not been looked at."""
    members: dict[str, list[str]] | None = None
    """With ordering ``partition``: the members of the group, and the partitions that each reads."""
    consumers: list[str] | None = None
    """Who holds messages or waits for some; of many, some."""


class CreateSubscription(Request, tag="create_subscription"):
    name: str
    settings: SubscriptionSettings
    start: str = "latest"
    """Where to begin in partitions that exist: ``earliest`` or ``latest``."""
    start_time_us: int | None = None
    """Where to begin instead: at the first message appended at or after this time."""
    start_offset: int | None = None
    """Where to begin instead: at this offset, in every partition."""
    exist_ok: bool = False
    """An existing subscription with the same settings is not an error."""


class CreateQueue(Request, tag="create_queue"):
    """A topic and a subscription of the same name, in one step."""

    name: str
    topic: TopicSettings
    subscription: dict[str, Any] = {}
    """Settings by name, as in ``SubscriptionSettings``, without ``topics``."""
    exist_ok: bool = False


class AlterSubscription(Request, tag="alter_subscription"):
    name: str
    changes: dict[str, Any]


class DeleteSubscription(Request, tag="delete_subscription"):
    """Of a queue, the topic goes too."""

    name: str


class DescribeSubscription(Request, tag="describe_subscription"):
    name: str


class ListSubscriptions(Request, tag="list_subscriptions"):
    pass


class Subscription(Reply, tag="subscription"):
    subscription: SubscriptionInfo


class Subscriptions(Reply, tag="subscriptions"):
    subscriptions: list[SubscriptionInfo]


class Receive(Request, tag="receive"):
    """Lease messages. Waits up to ``wait_ms`` while there are none."""

    subscription: str
    messages_max: int = 100
    bytes_max: int = 4 << 20
    wait_ms: int = 0
    visibility_ms: int | None = None
    """How long the lease lasts; the subscription's visibility if not given."""
    consumer: str = ""
    partitions: list[str] | None = None
    """Of a group: what the consumer reads, as ``topic/partition``. Nodes tell it each other."""


class PortionInfo(msgspec.Struct, kw_only=True):
    """Messages of one partition, under one lease."""

    topic: str
    topic_number: int
    partition: int
    lease: bytes
    """What settles these messages, together with their offsets."""
    deadline_us: int
    offsets: bytes
    """Which messages these are: a 64-bit roaring bitmap, portable format. In order, they are the
    rows of the portion's entries, one after the other."""
    deliveries: dict[int, bytes] = {}
    """How often, this time included, where more than once: bitmaps by count."""
    size: int
    """How many bytes of the body are this portion's entries."""


class Received(Reply, tag="received"):
    """The body is the entries of each portion, one after the other."""

    portions: list[PortionInfo]


class Settlement(msgspec.Struct, array_like=True):
    """Messages of one lease: the lease, and a bitmap of offsets."""

    lease: bytes
    offsets: bytes


class Ack(Request, tag="ack"):
    """Finish messages, durably."""

    subscription: str
    settlements: list[Settlement]


class Nack(Request, tag="nack"):
    """Give messages back to be delivered again, after the back-off or ``delay_ms``."""

    subscription: str
    settlements: list[Settlement]
    delay_ms: int | None = None
    error: str | None = None


class Extend(Request, tag="extend"):
    """Hold messages for ``visibility_ms`` from now on."""

    subscription: str
    settlements: list[Settlement]
    visibility_ms: int


class Return(Request, tag="return"):
    """Messages that nobody has looked at: they are ready again at once, as if never delivered."""

    subscription: str
    settlements: list[Settlement]


class Settled(Reply, tag="settled"):
    """``stale`` were not settled: their lease had ended, and they may be with another consumer."""

    stale: list[Settlement] = []


class Heartbeat(Request, tag="heartbeat"):
    """A member of a group is alive, and joins it if it has not done so."""

    subscription: str
    consumer: str


class Membership(Reply, tag="membership"):
    """The partitions that the member reads, as ``topic/partition``."""

    partitions: list[str]


class Leave(Request, tag="leave"):
    """A consumer ends: what it holds is ready again at once, and its partitions go to others."""

    subscription: str
    consumer: str


class Place(msgspec.Struct, array_like=True):
    """An offset of one partition."""

    topic: str
    partition: int
    offset: int


class Seek(Request, tag="seek"):
    """Begin again somewhere else: what is before counts as acknowledged, what is after is delivered.

    Receipts given out before are good no more.
    """

    subscription: str
    at: str | None = None
    """``earliest`` or ``latest``."""
    time_us: int | None = None
    """Instead: at the first message appended at or after this time."""
    offset: int | None = None
    """Instead: at this offset in every partition."""
    places: list[Place] | None = None
    """Instead: at an offset in each of these partitions; the others stay as they are."""


class Peek(Request, tag="peek"):
    """Look at pending messages; nothing changes."""

    subscription: str
    messages_max: int = 100
    bytes_max: int = 4 << 20
    states: list[str] = msgspec.field(default_factory=lambda: ["ready", "delayed", "leased"])


class GlanceInfo(msgspec.Struct, kw_only=True):
    """Pending messages of one partition. Bitmaps and entries are as in a portion."""

    topic: str
    topic_number: int
    partition: int
    offsets: bytes
    states: dict[str, bytes]
    deliveries: dict[int, bytes] = {}
    """How often they were delivered so far, where at all."""
    size: int


class Peeked(Reply, tag="peeked"):
    """The body is the entries of each glance, one after the other."""

    glances: list[GlanceInfo]


class Purge(Request, tag="purge"):
    """Finish what is pending, whoever has it; only what matches the filter if there is one."""

    subscription: str
    filter: str | None = None


class Cancel(Request, tag="cancel"):
    """Let scheduled messages never be delivered, for every subscription of their topic."""

    topic: str
    ids: list[str]


class Counted(Reply, tag="counted"):
    """How many messages that was."""

    count: int


class Redrive(Request, tag="redrive"):
    """Send some dead letters of a subscription back; ask again until none is left."""

    subscription: str
    """The one that failed with them, or the queue of its dead letters."""
    to: str | None = None
    """A topic to send them to, instead of each to its own."""
    filter: str | None = None
    dry_run: bool = False
    """Count all that match, and send none."""
    messages_max: int = 1000


class Redriven(Reply, tag="redriven"):
    count: int
    by_topic: dict[str, int]


class FindMessage(Request, tag="find_message"):
    """A message by its id, and where it stands with each subscription."""

    topic: str
    message_id: str


class Status(msgspec.Struct, kw_only=True):
    """Where a message stands with one subscription."""

    subscription: str
    state: str
    """``pending``, ``delayed``, ``leased``, ``acknowledged`` or ``dead-lettered``."""
    deliveries: int = 0
    consumer: str | None = None
    until_us: int | None = None
    """When the delay or the lease ends."""


class MessageFound(Reply, tag="message_found"):
    """The body is an entry with the message, or nothing if retention has removed it."""

    partition: int
    offset: int
    topic_number: int
    statuses: list[Status]


class ReadState(Request, tag="read_state"):
    """Where every pending message of a subscription stands, at one moment."""

    subscription: str


class PartitionDeliveries(msgspec.Struct, kw_only=True):
    """The pending messages of one partition, as bitmaps that follow each other in the body."""

    topic: str
    topic_number: int
    partition: int
    next_offset: int
    """Everything before was looked at; what comes after is not in here."""
    states: dict[str, int]
    """By state (``ready``, ``delayed``, ``leased``, ``dead``): the size of the bitmap of offsets."""
    deliveries: dict[int, int]
    """By how often they were delivered, where at all: the size of the bitmap of offsets."""


class StateRead(Reply, tag="state_read"):
    """The body is the bitmaps: of each partition first those of the states, then the others."""

    partitions: list[PartitionDeliveries]


class TokenInfo(msgspec.Struct, kw_only=True):
    """What is known of a token. The token itself is shown once, to whoever made it."""

    id: str
    name: str
    """Who the token stands for; several tokens may stand for one."""
    grants: list[str]
    created_us: int
    expires_us: int | None = None
    revoked_us: int | None = None
    is_certificate: bool = False
    """Nothing to show: a client certificate of this name stands for it."""


class CreateToken(Request, tag="create_token"):
    name: str
    grants: list[str]
    """As in ``publish:orders.*``, ``consume:queue:emails``, ``admin:*``."""
    expires_s: float | None = None
    """After how long it counts no more; never if not given."""
    is_certificate: bool = False
    """Make no secret: let client certificates of this name in."""


class TokenCreated(Reply, tag="token_created"):
    info: TokenInfo
    token: str | None = None
    """Keep it: it is not stored and not shown again. Nothing for a certificate."""

    def __repr__(self) -> str:
        return f"TokenCreated(id={self.id}, info={self.info!r})"


class ListTokens(Request, tag="list_tokens"):
    pass


class Tokens(Reply, tag="tokens"):
    tokens: list[TokenInfo]


class RevokeToken(Request, tag="revoke_token"):
    token_id: str


class DescribeNode(Request, tag="describe_node"):
    pass


class Node(Reply, tag="node"):
    node: str
    software: str
    uptime_s: float
    topics: int
    partitions: int
    connections: int
    counters: dict[str, float] = {}


class ReadMetrics(Request, tag="read_metrics"):
    pass


class Metrics(Reply, tag="metrics"):
    """The body is the node's figures, as text that Prometheus reads."""

    media_type: str


class AlertInfo(msgspec.Struct, kw_only=True):
    """An alert that fires or has cleared."""

    rule: str
    watch: str
    subject: str
    """The subscription, topic or node; empty for the node that found it."""
    severity: str
    state: str
    """``firing`` or ``cleared``."""
    value: float
    """What it was when the alert fired or cleared."""
    limit: float
    unit: str
    since_us: int
    """When it fired."""
    until_us: int | None = None
    """When it cleared."""
    summary: str = ""
    node: str = ""
    """The node that found it."""
    """All of this in one line."""


class ListAlerts(Request, tag="list_alerts"):
    pass


class Alerts(Reply, tag="alerts"):
    firing: list[AlertInfo]
    """The worst first, then the newest."""
    recent: list[AlertInfo]
    """Those that cleared lately, the newest first."""


class AskPeer(Request, tag="ask_peer"):
    """A node of the cluster asks another. What it asks is between nodes of one version."""

    question: bytes


class PeerAnswer(Reply, tag="peer_answer"):
    answer: bytes


class NodeInfo(msgspec.Struct, kw_only=True):
    """A node of the cluster, as the node asked knows it."""

    id: str
    address: str = ""
    """Where it speaks the native protocol, as host:port."""
    http: str = ""
    """Where it speaks HTTP, as host:port; empty if nowhere."""
    zone: str = ""
    version: str = ""
    role: str = "full"
    """``full``, or ``forwarder``, which holds nothing."""
    alive: bool = True
    draining: bool = False
    """It is to be emptied."""
    leads: int = 0
    """How many partitions it leads."""
    holds: int = 0
    """How many replicas it holds."""


class PartitionPlacement(msgspec.Struct, kw_only=True):
    """Who holds a partition, and who leads it."""

    topic: str
    index: int
    leader: str | None = None
    """``None`` while nobody leads it."""
    epoch: int = 0
    replicas: list[str] = []
    """The first is the one that leads if all is well."""
    in_sync: list[str] = []
    target: list[str] = []
    """Where the replicas are to be, while they are being moved."""
    min_in_sync: int = 1


class ClusterInfo(msgspec.Struct, kw_only=True):
    nodes: list[NodeInfo]
    partitions: list[PartitionPlacement]
    controller: str | None = None
    """The node that elects leaders and places replicas."""
    revision: int = 0
    """Grows with every change that the nodes agree on."""


class DescribeCluster(Request, tag="describe_cluster"):
    pass


class Cluster(Reply, tag="cluster"):
    cluster: ClusterInfo


class MovePartition(Request, tag="move_partition"):
    """Have these nodes, and no others, hold a partition; it is copied while it is used."""

    topic: str
    partition: int
    nodes: list[str]
    """The first is the one that leads if all is well."""


class TransferLead(Request, tag="transfer_lead"):
    """Have another in-sync replica lead a partition."""

    topic: str
    partition: int
    node: str | None = None
    """The best of the others if not given."""


class Decommission(Request, tag="decommission"):
    """Empty a node: what it leads and holds goes to others."""

    node: str
    cancel: bool = False
    """Let it hold replicas again."""


AnyRequest = (
    Hello
    | Ping
    | Abandon
    | CreateTopic
    | AlterTopic
    | SplitPartition
    | DeleteTopic
    | DescribeTopic
    | ListTopics
    | OpenProducer
    | Publish
    | Copy
    | Fetch
    | FindOffset
    | CreateSubscription
    | CreateQueue
    | AlterSubscription
    | DeleteSubscription
    | DescribeSubscription
    | ListSubscriptions
    | Receive
    | Ack
    | Nack
    | Extend
    | Return
    | Heartbeat
    | Leave
    | Seek
    | Peek
    | Purge
    | Cancel
    | Redrive
    | FindMessage
    | ReadState
    | CreateToken
    | ListTokens
    | RevokeToken
    | DescribeNode
    | ReadMetrics
    | ListAlerts
    | AskPeer
    | DescribeCluster
    | MovePartition
    | TransferLead
    | Decommission
)
AnyReply = (
    Welcome
    | Done
    | Failed
    | Topic
    | Topics
    | ProducerOpened
    | Published
    | Copied
    | Fetched
    | OffsetFound
    | Subscription
    | Subscriptions
    | Received
    | Settled
    | Membership
    | Peeked
    | Counted
    | Redriven
    | MessageFound
    | StateRead
    | TokenCreated
    | Tokens
    | Node
    | Metrics
    | Alerts
    | PeerAnswer
    | Cluster
)

encode = msgspec.msgpack.Encoder().encode
_requests: msgspec.msgpack.Decoder[AnyRequest] = msgspec.msgpack.Decoder(AnyRequest)
_replies: msgspec.msgpack.Decoder[AnyReply] = msgspec.msgpack.Decoder(AnyReply)


class _Glimpse(msgspec.Struct):
    """What can be read of a header that is not understood as a whole."""

    id: int = 0
    call: str = ""


_glimpses = msgspec.msgpack.Decoder(_Glimpse)
CALLS = {call.__struct_config__.tag for call in AnyRequest.__args__}


class BadRequest(Exception):
    """A request that cannot be carried out, and what to answer."""

    def __init__(self, reply: Failed) -> None:
        super().__init__(reply.message)
        self.reply = reply


def decode_request(header: memoryview) -> AnyRequest:
    """The request in a header; ``BadRequest`` if it can be answered, else ``ProtocolError``."""
    try:
        return _requests.decode(header)
    except QuiverError as error:
        glimpse = _glimpse(header, error)
        raise BadRequest(failure(glimpse.id, error)) from error
    except Exception as error:
        glimpse = _glimpse(header, error)
        known = glimpse.call in CALLS
        reason = ProtocolError if known else UnknownCall
        text = f"{glimpse.call}: {error}" if known else f"there is no call {glimpse.call[:80]!r}"
        raise BadRequest(failure(glimpse.id, reason(text))) from error


def _glimpse(header: memoryview, error: Exception) -> _Glimpse:
    try:
        return _glimpses.decode(header)
    except Exception:
        raise ProtocolError(f"the header is not a request: {error}") from error


def decode_reply(header: memoryview) -> AnyReply:
    try:
        return _replies.decode(header)
    except Exception as error:
        raise ProtocolError(f"the header is not a reply: {error}") from error


def failure(request_id: int, error: QuiverError) -> Failed:
    return Failed(
        id=request_id,
        code=error.code,
        message=error.message,
        details=error.details,
        retryable=error.retryable,
    )


def raise_failure(reply: Failed) -> None:
    raise error_from(reply.code, reply.message, reply.details)
