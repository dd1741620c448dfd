"""Requests and replies as bytes: msgpack maps, decoded and checked by msgspec in one step.

Every request has an ``id`` that its reply repeats; replies come in any order. Unknown fields are
ignored, so that either side may be newer. Fields are only ever added, with defaults.
"""

from __future__ import annotations

import msgspec

from quiver.errors import ProtocolError, QuiverError, UnknownCall
from quiver.protocol.access import CreateToken, ListTokens, RevokeToken, TokenCreated, Tokens
from quiver.protocol.base import Done, Failed, failure
from quiver.protocol.cluster import (
    Announce,
    Announced,
    AskPeer,
    Cluster,
    Decommission,
    DescribeCluster,
    MovePartition,
    PeerAnswer,
    RotatePeerSecret,
    TransferLead,
)
from quiver.protocol.connection import Abandon, Hello, Ping, Welcome
from quiver.protocol.deliver import (
    Ack,
    AwaitReady,
    Consume,
    Consuming,
    Extend,
    Nack,
    Progress,
    Ready,
    Receive,
    Received,
    Reject,
    Return,
    Settled,
)
from quiver.protocol.groups import GroupMembership, Heartbeat, Leave
from quiver.protocol.inspect import (
    Cancel,
    Counted,
    FindMessage,
    MessageFound,
    Peek,
    Peeked,
    Purge,
    ReadState,
    Redrive,
    Redriven,
    Seek,
    StateRead,
)
from quiver.protocol.mirrors import (
    AlterMirror,
    CreateMirror,
    DeleteMirror,
    DeliveryStateFetched,
    DescribeMirror,
    DescribeSource,
    FenceTopic,
    FetchDeliveryState,
    FetchLog,
    ListMirrors,
    LogFetched,
    Mirror,
    Mirrors,
    PromoteTopics,
    SourceDescribed,
    TopicsPromoted,
)
from quiver.protocol.observe import Alerts, DescribeNode, ListAlerts, Metrics, Node, ReadMetrics
from quiver.protocol.publish import Copied, Copy, OpenProducer, ProducerOpened, Publish, Published
from quiver.protocol.read import Fetch, Fetched, FindOffset, OffsetFound
from quiver.protocol.restore import (
    EntriesRestored,
    ExportTokens,
    FinishRestore,
    RestoreEntries,
    RestoreState,
    RestoreSubscription,
    RestoreToken,
    RestoreTopic,
    TokensExported,
)
from quiver.protocol.subscriptions import (
    AlterSubscription,
    CreateQueue,
    CreateSubscription,
    DeleteSubscription,
    DescribeSubscription,
    ListSubscriptions,
    Subscription,
    Subscriptions,
)
from quiver.protocol.topics import (
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    DescribeTopic,
    ListTopics,
    SplitPartition,
    Topic,
    Topics,
)
from quiver.protocol.transactions import (
    AbortTransaction,
    BeginTransactions,
    CloseTransactions,
    DescribeTransaction,
    EndTransaction,
    EndTransactionAfter,
    Hold,
    JoinTransaction,
    ResolveTransactions,
    TransactionEnded,
    TransactionInfo,
    TransactionsBegun,
    TransactionsResolved,
)

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
    | AwaitReady
    | Ack
    | Nack
    | Reject
    | Extend
    | Return
    | Hold
    | Consume
    | Progress
    | Heartbeat
    | Leave
    | Seek
    | Peek
    | Purge
    | Cancel
    | Redrive
    | FindMessage
    | ReadState
    | RestoreTopic
    | RestoreEntries
    | RestoreSubscription
    | RestoreState
    | FinishRestore
    | ExportTokens
    | RestoreToken
    | CreateToken
    | ListTokens
    | RevokeToken
    | DescribeNode
    | ReadMetrics
    | ListAlerts
    | AskPeer
    | DescribeCluster
    | Announce
    | MovePartition
    | TransferLead
    | Decommission
    | RotatePeerSecret
    | BeginTransactions
    | JoinTransaction
    | EndTransaction
    | EndTransactionAfter
    | DescribeTransaction
    | AbortTransaction
    | ResolveTransactions
    | CloseTransactions
    | DescribeSource
    | FetchLog
    | FetchDeliveryState
    | FenceTopic
    | CreateMirror
    | AlterMirror
    | DeleteMirror
    | DescribeMirror
    | ListMirrors
    | PromoteTopics
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
    | Ready
    | Settled
    | Consuming
    | GroupMembership
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
    | Announced
    | EntriesRestored
    | TokensExported
    | TransactionsBegun
    | TransactionEnded
    | TransactionInfo
    | TransactionsResolved
    | SourceDescribed
    | LogFetched
    | DeliveryStateFetched
    | Mirror
    | Mirrors
    | TopicsPromoted
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
