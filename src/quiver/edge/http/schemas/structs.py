"""The requests and replies of the HTTP edge: decoded, checked and described in OpenAPI."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from quiver.edge.http import text_forms
from quiver.edge.http.problems import Problem
from quiver.model.guard import DEDUP_ID_MAX
from quiver.model.subscription import RECEIVE_MAX, SubscriptionSettings
from quiver.model.topic import PARTITIONS_MAX, TopicSettings
from quiver.protocol import AlertInfo, NodeInfo, PartitionPlacement

BATCH_MAX = 10_000
RECEIPTS_MAX = 10_000
WAIT_S_MAX = 20
_YEAR_S = 366 * 86_400
_LONG_S = 12 * 3600

Name = Annotated[
    str,
    Meta(
        pattern=text_forms.NAME,
        description="1 to 200 letters, digits, '.', '_' or '-'.",
        examples=["emails"],
    ),
]
TopicPattern = Annotated[
    str,
    Meta(
        pattern=text_forms.TOPIC_PATTERN,
        description="A topic's name, or a pattern with '*'.",
        examples=["orders"],
    ),
]
SizeText = Annotated[str, Meta(pattern=text_forms.SIZE, examples=["10GB"])]
Seconds = Annotated[float, Meta(ge=0, le=_YEAR_S)]
DurationText = Annotated[str, Meta(pattern=text_forms.DURATION, examples=["1h"])]
Delay = Annotated[
    Seconds | DurationText, Meta(description="Seconds, or text such as '1h'.", examples=[3600])
]
Rest = Annotated[
    Annotated[float, Meta(ge=0, le=_LONG_S)] | DurationText,
    Meta(description="Seconds, or text such as '5m'.", examples=[300]),
]
MessageIdText = Annotated[
    str, Meta(pattern=text_forms.MESSAGE_ID, examples=["0pg4v6qg9e2g00000400000000000000"])
]
Receipt = Annotated[str, Meta(min_length=1, max_length=100, examples=["AAAAAAAAAAAAAAAAAAAA.17"])]
Priority = Annotated[
    int, Meta(ge=0, le=9, description="0 to 9; 9 is delivered first. Default: 4.", examples=[5])
]
Key = Annotated[
    str,
    Meta(
        max_length=100_000,
        description="Messages with the same key stay in order.",
        examples=["customer-7"],
    ),
]
Consumer = Annotated[
    str,
    Meta(
        max_length=200,
        description="The consumer's name. Required for a group (ordering 'partition').",
    ),
]
DedupId = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=DEDUP_ID_MAX,
        description="A message with the same id within the topic's `dedup_window` is not stored again.",
    ),
]


# ---------------------------------------------------------------------- publishing


class NewMessage(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A message to publish. ``message`` is any JSON value; its bytes are stored as sent."""

    message: Annotated[Raw, Meta(description="Any JSON value.", examples=[{"order": 7}])]
    encoding: Annotated[
        Literal["json", "base64"],
        Meta(description="With 'base64', `message` is base64 text and its bytes are the payload."),
    ] = "json"
    key: Key | None = None
    headers: Annotated[dict[str, str], Meta(max_length=100)] | None = None
    priority: Priority | None = None
    delay: Delay | None = None
    ttl: (
        Annotated[
            Seconds | DurationText,
            Meta(description="Time until the message expires: seconds, or text such as '1h'."),
        ]
        | None
    ) = None
    event_time: (
        Annotated[datetime, Meta(description="When the event happened.", tz=True)] | None
    ) = None
    dedup_id: DedupId | None = None
    partition: Annotated[int, Meta(ge=0, le=65_535)] | None = None


Messages = Annotated[list[NewMessage], Meta(min_length=1, max_length=BATCH_MAX)]


class PlainMessage(Struct, forbid_unknown_fields=True, gc=False):
    """A message to publish with only a payload."""

    message: Raw


PlainMessages = Annotated[list[PlainMessage], Meta(min_length=1, max_length=BATCH_MAX)]


class RawQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Options of a message whose body is not JSON."""

    key: Annotated[str, Meta(max_length=1000)] | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    delay: DurationText | UnsetType = UNSET
    ttl: DurationText | UnsetType = UNSET
    partition: Annotated[int, Meta(ge=0, le=65_535)] | UnsetType = UNSET


class Stored(Struct, kw_only=True, omit_defaults=True):
    """A stored message and its position."""

    id: str | None = None
    topic: str
    partition: int
    offset: int | None = None
    duplicate: bool = False
    """The message was stored before and was not stored again."""


class Result(Struct, kw_only=True, omit_defaults=True):
    """The result for one message of a list: its position, or the error."""

    id: str | None = None
    topic: str | UnsetType = UNSET
    partition: int | UnsetType = UNSET
    offset: int | None = None
    duplicate: bool = False
    error: Problem | None = None


class Results(Struct, kw_only=True):
    """The result for each message, in the order given."""

    results: list[Result]


class ArrowResult(Struct, kw_only=True):
    """The number of rows of an Arrow stream that were stored."""

    stored: int


# ---------------------------------------------------------------------- receiving


class ReceiveQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    batch_size: Annotated[
        int, Meta(ge=1, le=RECEIVE_MAX, description="Most messages to return.")
    ] = 10
    wait: Annotated[
        float,
        Meta(ge=0, le=WAIT_S_MAX, description="Seconds to wait for a message if there is none."),
    ] = 0.0
    visibility: (
        Annotated[
            float,
            Meta(
                ge=0,
                le=_LONG_S,
                description="Seconds that a received message is hidden from other consumers.",
            ),
        ]
        | UnsetType
    ) = UNSET
    consumer: Consumer = ""


class StreamQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    consumer: Consumer = ""
    visibility: Annotated[float, Meta(ge=0, le=_LONG_S)] | UnsetType = UNSET


class DeliveredMessage(Struct, kw_only=True, omit_defaults=True):
    """A received message."""

    id: str
    body: Any
    """The JSON value that was sent; text where ``encoding`` is ``base64``."""
    receipt_handle: str
    """Acknowledges, returns or extends this delivery."""
    encoding: Literal["base64"] | UnsetType = UNSET
    key: str | None = None
    key_encoding: Literal["base64"] | UnsetType = UNSET
    headers: dict[str, str] = {}
    priority: int | UnsetType = UNSET
    deliveries: int = 1
    topic: str
    partition: int
    offset: int
    timestamp: datetime
    """When it was stored."""
    deadline: datetime
    """When the lease ends."""
    event_time: datetime | None = None
    expires_at: datetime | None = None
    dedup_id: str | None = None


class Delivered(Struct, kw_only=True):
    messages: list[DeliveredMessage]


class Ack(Struct, kw_only=True, forbid_unknown_fields=True):
    receipts: Annotated[list[Receipt], Meta(min_length=1, max_length=RECEIPTS_MAX)]


class Nack(Ack, kw_only=True, forbid_unknown_fields=True):
    delay: (
        Annotated[Rest, Meta(description="Time until the next delivery. Default: the back-off.")]
        | None
    ) = None
    error: (
        Annotated[str, Meta(max_length=4000, description="Error text, stored with a dead letter.")]
        | None
    ) = None


class Extend(Ack, kw_only=True, forbid_unknown_fields=True):
    visibility: Annotated[Rest, Meta(description="The new lease time, from now.")]


class Settled(Struct, kw_only=True):
    settled: int


class PeekQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    batch_size: Annotated[
        int, Meta(ge=1, le=RECEIVE_MAX, description="Most messages to return.")
    ] = 10
    state: (
        Annotated[
            Literal["ready", "delayed", "leased"],
            Meta(description="Return only messages in this state."),
        ]
        | UnsetType
    ) = UNSET


class SeenMessage(Struct, kw_only=True, omit_defaults=True):
    """A stored message, not received."""

    id: str
    body: Any
    """The JSON value that was sent; text where ``encoding`` is ``base64``."""
    encoding: Literal["base64"] | UnsetType = UNSET
    key: str | None = None
    key_encoding: Literal["base64"] | UnsetType = UNSET
    headers: dict[str, str] = {}
    priority: int | UnsetType = UNSET
    topic: str
    partition: int
    offset: int
    timestamp: datetime
    state: str | UnsetType = UNSET
    deliveries: int | UnsetType = UNSET


class Seen(Struct, kw_only=True):
    messages: list[SeenMessage]


class BrowseQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Without ``offset`` and ``time``, the newest messages are returned."""

    partition: Annotated[int, Meta(ge=0, le=65_535)] | UnsetType = UNSET
    offset: (
        Annotated[int, Meta(ge=0, le=2**53, description="First offset, in each partition.")]
        | UnsetType
    ) = UNSET
    time: (
        Annotated[
            str,
            Meta(
                max_length=100,
                description="Return messages stored at or after this time, or within a time such as '-1h'.",
                examples=["-1h", "2026-01-01T00:00:00Z"],
            ),
        ]
        | UnsetType
    ) = UNSET
    key: (
        Annotated[str, Meta(max_length=1000, description="Return only messages with this key.")]
        | UnsetType
    ) = UNSET
    batch_size: Annotated[int, Meta(ge=1, le=1000, description="Most messages to return.")] = 50


class DeadLetter(Struct, kw_only=True):
    """The origin of a dead letter, and its error."""

    origin_topic: str
    origin_partition: int | None = None
    origin_offset: int | None = None
    origin_subscription: str | None = None
    origin_time: datetime | None = None
    deliveries: int | None = None
    last_error: str | None = None
    first_delivery: datetime | None = None
    last_delivery: datetime | None = None


class BrowsedMessage(Struct, kw_only=True, omit_defaults=True):
    """A stored message."""

    id: str
    body: Any
    """The JSON value that was sent; text where ``encoding`` is ``base64``."""
    encoding: Literal["base64"] | UnsetType = UNSET
    key: str | None = None
    key_encoding: Literal["base64"] | UnsetType = UNSET
    headers: dict[str, str] = {}
    priority: int | UnsetType = UNSET
    topic: str
    partition: int
    offset: int
    timestamp: datetime
    bytes: int
    """The size of the payload."""
    event_time: datetime | None = None
    deliver_at: datetime | None = None
    expires_at: datetime | None = None
    dedup_id: str | None = None
    dead_letter: DeadLetter | None = None


class Browsed(Struct, kw_only=True):
    messages: list[BrowsedMessage]
    """Newest first; with ``offset`` or ``time``, oldest first."""
    examined: int
    """Number of messages that were searched."""
    complete: bool
    """False if the search stopped at its limits and there may be more."""


class SubscriptionState(Struct, kw_only=True, omit_defaults=True):
    """The state of a message in one subscription."""

    subscription: str
    state: str
    deliveries: int = 0
    consumer: str | None = None
    until: datetime | None = None


class MessageState(Struct, kw_only=True):
    """A message and its states; ``message`` is null if retention has deleted it."""

    topic: str
    partition: int
    offset: int
    message: SeenMessage | None
    subscriptions: list[SubscriptionState]


class SeekPlace(Struct, kw_only=True, forbid_unknown_fields=True):
    topic: Name
    partition: Annotated[int, Meta(ge=0, le=65_535)]
    offset: Annotated[int, Meta(ge=0, le=2**53)]


class Seek(Struct, kw_only=True, forbid_unknown_fields=True):
    """The new position: ``to`` for all partitions, or ``places`` for single ones."""

    to: (
        Annotated[int, Meta(ge=0, le=2**53, description="An offset in every partition.")]
        | Annotated[
            str,
            Meta(
                max_length=100,
                description="'earliest', 'latest', a time ago such as '-1h', or a timestamp.",
                examples=["-1h", "2026-01-01T00:00:00Z"],
            ),
        ]
        | None
    ) = None
    places: Annotated[list[SeekPlace], Meta(min_length=1, max_length=4096)] | None = None


class PurgeOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    filter: Annotated[str, Meta(max_length=10_000)] | None = None


class RedriveOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    to: Annotated[Name, Meta(description="Send the messages to this topic instead.")] | None = None
    filter: Annotated[str, Meta(max_length=10_000)] | None = None
    dry_run: Annotated[bool, Meta(description="Only count the messages.")] = False
    rate: Annotated[float, Meta(gt=0, le=1e9, description="Most messages per second.")] | None = (
        None
    )
    max_messages: Annotated[int, Meta(ge=1, le=10**12)] | None = None


class Count(Struct, kw_only=True):
    """The number of messages."""

    messages: int


# ---------------------------------------------------------------------- topics and subscriptions


def _fields_of(
    *structs: type[Struct], without: frozenset[str] = frozenset()
) -> list[tuple[str, Any, Any]]:
    return [
        (field.name, _partial_type(field.type, _name_of(struct, field.name)) | UnsetType, UNSET)
        for struct in structs
        for field in msgspec.structs.fields(struct)
        if field.name not in without
    ]


class PushFields(Struct, kw_only=True, forbid_unknown_fields=True):
    """An HTTP endpoint that receives the messages. A 2xx answer acknowledges them."""

    url: Annotated[
        str, Meta(max_length=2000, pattern=text_forms.URL, examples=["https://a.example"])
    ]
    secret: Name | UnsetType | None = UNSET
    batch: Annotated[int, Meta(ge=1, le=1000)] | UnsetType = UNSET
    concurrency: Annotated[int, Meta(ge=1, le=64)] | UnsetType = UNSET
    timeout: Annotated[float, Meta(ge=0.1, le=300)] | DurationText | UnsetType = UNSET


def _name_of(struct: type[Struct], field: str) -> str:
    """Settings in a group are named with their struct, as ``Retention.age``."""
    is_group = struct not in (TopicSettings, SubscriptionSettings)
    return f"{struct.__name__}.{field}" if is_group else field


_BOUNDS: dict[str, Any] = {
    "partitions": Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)],
    "sync_interval_ms": Annotated[int, Meta(ge=1, le=60_000)],
    "message_bytes_max": Annotated[int, Meta(ge=1, le=32 << 20)],
    "segment_bytes": Annotated[int, Meta(ge=1 << 20, le=1 << 36)],
    "segment_age_s": Annotated[int, Meta(ge=1, le=10 * 365 * 86_400)],
    "max_deliveries": Annotated[int, Meta(ge=0, le=10_000)],
    "visibility": Rest,
    "ageing": Annotated[float, Meta(ge=0, le=365 * 86_400)] | DurationText,
    "topics": Annotated[list[TopicPattern], Meta(min_length=1, max_length=1000)],
    "dead_letter": Name | None,
    "filter": Annotated[str, Meta(max_length=10_000, examples=["headers.region = 'eu'"])] | None,
    "push": PushFields | None,
    "fairness": Annotated[str, Meta(max_length=210, examples=["headers.tenant"])] | None,
    "session_timeout": Rest,
    "dedup_window": Annotated[float, Meta(ge=0, le=86_400)] | DurationText,
    "Retention.age": Annotated[float, Meta(ge=1, le=100 * 365 * 86_400)] | DurationText | None,
    "Retention.bytes": Annotated[int, Meta(ge=1, le=1 << 60)] | SizeText | None,
    "Retention.messages": Annotated[int, Meta(ge=1, le=1 << 60)] | None,
    "Backoff.min": Rest,
    "Backoff.max": Rest,
    "Backoff.factor": Annotated[float, Meta(ge=1, le=100)],
}
"""The bounds of settings, repeated for the schema."""


def _partial_type(of_type: Any, name: str) -> Any:
    """The type of a setting in a request; a group of settings may be partial."""
    if name in _BOUNDS:
        return _BOUNDS[name]
    if isinstance(of_type, type) and issubclass(of_type, Struct):
        return _partial_group(of_type)
    return of_type


@cache
def _partial_group(group: type[Struct]) -> type[Struct]:
    return partial_of(f"{group.__name__}Fields", group)


def partial_of(
    name: str,
    *structs: type[Struct],
    without: frozenset[str] = frozenset(),
    extra: tuple[tuple[str, Any, Any], ...] = (),
) -> type[Struct]:
    """A struct with the fields of others, all optional."""
    return msgspec.defstruct(
        name,
        [*_fields_of(*structs, without=without), *extra],
        kw_only=True,
        forbid_unknown_fields=True,
        module=__name__,
    )


_NO_TOPICS = frozenset({"topics"})
TopicFields = partial_of("TopicFields", TopicSettings)
QueueFields = partial_of("QueueFields", TopicSettings, SubscriptionSettings, without=_NO_TOPICS)
QueueChanges = partial_of("QueueChanges", SubscriptionSettings, without=_NO_TOPICS)
SubscriptionFields = partial_of(
    "SubscriptionFields",
    SubscriptionSettings,
    extra=(
        ("start", Literal["latest", "earliest"] | UnsetType, UNSET),
        ("start_time", Annotated[datetime, Meta(tz=True)] | UnsetType, UNSET),
    ),
)
SubscriptionChanges = partial_of("SubscriptionChanges", SubscriptionSettings)


class PartitionView(Struct, kw_only=True):
    index: int
    leader: str | None = None
    start_offset: int | None = None
    next_offset: int | None = None
    bytes: int | None = None


class TopicView(Struct, kw_only=True):
    name: str
    created: datetime
    settings: TopicSettings
    partitions: list[PartitionView]


class TopicList(Struct, kw_only=True):
    topics: list[TopicView]


class SubscriptionView(Struct, kw_only=True):
    name: str
    created: datetime
    is_queue: bool
    settings: SubscriptionSettings
    ready: int | None = None
    delayed: int | None = None
    leased: int | None = None
    dead: int | None = None
    unseen: int | None = None
    members: dict[str, list[str]] | None = None
    """Members of the consumer group, with the partitions that each reads."""
    consumers: list[str] | None = None
    """Consumers that hold or wait for messages; not all if there are many."""


class SubscriptionList(Struct, kw_only=True):
    subscriptions: list[SubscriptionView]


class QueueList(Struct, kw_only=True):
    queues: list[SubscriptionView]


# ---------------------------------------------------------------------- the node


class Health(Struct, kw_only=True):
    status: Literal["ok"] = "ok"


class ClusterView(Struct, kw_only=True):
    """The cluster, and the node that answers."""

    node: str
    software: str
    uptime_s: float
    topics: int
    connections: int
    nodes: list[NodeInfo]
    partitions: list[PartitionPlacement]
    controller: str | None = None
    revision: int = 0


class AlertsView(Struct, kw_only=True):
    firing: list[AlertInfo]
    """By severity, then newest first."""
    recent: list[AlertInfo]
    """Recently cleared alerts, newest first."""
