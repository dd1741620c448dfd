"""All errors of Quiver.

Each class has a stable ``code``, which every protocol carries. ``retryable`` says whether the same
call may succeed later. ``details`` holds values for programs. The docstring is the default message.

    QuiverError
    ├── InvalidRequest
    │   ├── InvalidSetting
    │   ├── InvalidBatch
    │   ├── InvalidFilter
    │   ├── MessageTooLarge
    │   ├── TopicFull
    │   ├── ReadOnlyTopic
    │   ├── TopicNotFound
    │   ├── TopicExists
    │   ├── PartitionNotFound
    │   ├── StaleLayout
    │   ├── SubscriptionNotFound
    │   ├── SubscriptionExists
    │   ├── ReadOnlySubscription
    │   ├── MessageNotFound
    │   ├── InvalidReceipt
    │   ├── StaleReceipt
    │   ├── TokenNotFound
    │   ├── NodeNotFound
    │   ├── NotACluster
    │   ├── MirrorNotFound
    │   ├── MirrorExists
    │   ├── MirrorLoop
    │   └── MirrorDiverged
    ├── AccessRefused
    │   ├── Unauthenticated
    │   └── PermissionDenied
    ├── HttpError
    │   ├── MalformedRequest
    │   ├── MalformedBody
    │   ├── PathNotFound
    │   ├── MethodNotAllowed
    │   ├── NotAcceptable
    │   ├── UnsupportedMediaType
    │   ├── BodyTooLarge
    │   ├── HeadersTooLarge
    │   └── BodyTimeout
    ├── ProtocolError
    │   ├── UnsupportedProtocol
    │   └── UnknownCall
    ├── ProducerError
    │   ├── ProducerFenced
    │   └── SequenceGap
    ├── TransactionError
    │   ├── TransactionAborted
    │   │   ├── TransactionTimedOut
    │   │   └── TransactionFenced
    │   ├── TransactionInDoubt
    │   ├── TransactionTooLarge
    │   └── TransactionNotFound
    ├── Unavailable
    │   ├── ShuttingDown
    │   ├── Overloaded
    │   ├── QuotaExceeded
    │   ├── DiskFull
    │   ├── PartitionUnavailable
    │   ├── NotLeader
    │   ├── NotEnoughReplicas
    │   ├── LeaderChanged
    │   ├── RequestTimeout
    │   └── ConnectionLost
    │       └── NodeGone
    ├── LogError
    │   ├── FolderInUse
    │   ├── OffsetOutOfRange
    │   ├── CorruptLog
    │   ├── UnsupportedFormat
    │   ├── LogFailed
    │   └── LogClosed
    ├── MetadataError
    │   ├── MetadataConflict
    │   ├── LeaseLost
    │   ├── WatchCompacted
    │   └── MetadataUnavailable
    └── BackupError
        ├── BackupNotFound
        └── CorruptBackup
"""

from __future__ import annotations

from typing import Any, ClassVar


class QuiverError(Exception):
    """Something went wrong in Quiver."""

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str | None = None, /, **details: Any) -> None:
        self.message = message or (self.__doc__ or "").strip()
        self.details = details
        super().__init__(self.message)


class InvalidRequest(QuiverError):
    """The request is not valid."""

    code = "invalid_request"


class InvalidSetting(InvalidRequest):
    """A setting is unknown or its value is not allowed."""

    code = "invalid_setting"


class InvalidBatch(InvalidRequest):
    """The bytes are not a valid batch of messages. Nothing was stored."""

    code = "invalid_batch"


class InvalidFilter(InvalidRequest):
    """The filter is not valid. The details name the position of the mistake."""

    code = "invalid_filter"


class MessageTooLarge(InvalidRequest):
    """A message is larger than the topic allows. Send smaller messages or raise message_bytes_max."""

    code = "message_too_large"


class TopicFull(InvalidRequest):
    """The topic has as many unread messages as it may keep. Nothing was stored. Consume some."""

    code = "topic_full"


class ReadOnlyTopic(InvalidRequest):
    """The topic takes no publishes: it is a copy of one in another cluster, or was moved there."""

    code = "read_only_topic"


class TopicNotFound(InvalidRequest):
    """The topic does not exist. Create it first."""

    code = "topic_not_found"


class TopicExists(InvalidRequest):
    """A topic with this name already exists."""

    code = "topic_exists"


class PartitionNotFound(InvalidRequest):
    """The topic has no such partition."""

    code = "partition_not_found"


class StaleLayout(InvalidRequest):
    """A partition of the topic was split. Describe the topic again and use its new partitions."""

    code = "stale_layout"
    retryable = True


class SubscriptionNotFound(InvalidRequest):
    """The queue or subscription does not exist. Create it first."""

    code = "subscription_not_found"


class SubscriptionExists(InvalidRequest):
    """A queue or subscription with this name already exists."""

    code = "subscription_exists"


class ReadOnlySubscription(InvalidRequest):
    """Another cluster delivers for the subscription: it is copied from there, or was moved there."""

    code = "read_only_subscription"


class SessionNotFound(InvalidRequest):
    """The connection has no consumer session with this number: it has ended. Open another."""

    code = "session_not_found"


class MessageNotFound(InvalidRequest):
    """The topic has no message with this id."""

    code = "message_not_found"


class InvalidReceipt(InvalidRequest):
    """The receipt is not valid, or belongs to another queue."""

    code = "invalid_receipt"


class StaleReceipt(InvalidRequest):
    """The lease has ended. Another consumer may have the message. Use a longer visibility."""

    code = "stale_receipt"


class TokenNotFound(InvalidRequest):
    """The token does not exist."""

    code = "token_not_found"


class NodeNotFound(InvalidRequest):
    """The cluster has no such node."""

    code = "node_not_found"


class NotACluster(InvalidRequest):
    """This node is not part of a cluster. The nodes of a cluster share their metadata in etcd."""

    code = "not_a_cluster"


class MirrorNotFound(InvalidRequest):
    """There is no mirror of this name."""

    code = "mirror_not_found"


class MirrorExists(InvalidRequest):
    """A mirror with this name already exists."""

    code = "mirror_exists"


class MirrorLoop(InvalidRequest):
    """The messages of the topic come from this cluster. It cannot copy them back."""

    code = "mirror_loop"


class MirrorDiverged(InvalidRequest):
    """The source has other messages than the copy where both should be the same. Nothing was merged."""

    code = "mirror_diverged"


class AccessRefused(QuiverError):
    """Access is refused."""

    code = "access_refused"


class Unauthenticated(AccessRefused):
    """The token or certificate is missing, wrong, expired or revoked."""

    code = "unauthenticated"


class PermissionDenied(AccessRefused):
    """The caller has no grant for this. The details name the permission and the resource."""

    code = "permission_denied"


class HttpError(QuiverError):
    """The HTTP request is not valid."""

    code = "http_error"


class MalformedRequest(HttpError):
    """The bytes are not a valid HTTP request. The connection is closed."""

    code = "malformed_request"


class MalformedBody(HttpError):
    """The body does not match its content type or encoding."""

    code = "malformed_body"


class PathNotFound(HttpError):
    """The path does not exist. See /openapi.json for all paths."""

    code = "path_not_found"


class MethodNotAllowed(HttpError):
    """The path does not support this method. See the Allow header."""

    code = "method_not_allowed"


class NotAcceptable(HttpError):
    """The path cannot answer in a format that the Accept header allows."""

    code = "not_acceptable"


class UnsupportedMediaType(HttpError):
    """The path does not accept this content type or encoding."""

    code = "unsupported_media_type"


class BodyTooLarge(HttpError):
    """The body is too large, as it is or after decompression. Send less at a time."""

    code = "body_too_large"


class HeadersTooLarge(HttpError):
    """The request line and headers are too large."""

    code = "headers_too_large"


class BodyTimeout(HttpError):
    """The body took too long to arrive."""

    code = "body_timeout"


class ProtocolError(QuiverError):
    """The bytes are not valid in the native protocol. The connection is closed."""

    code = "protocol_error"


class UnsupportedProtocol(ProtocolError):
    """Client and node share no version of the protocol. Upgrade the older one."""

    code = "unsupported_protocol"


class UnknownCall(ProtocolError):
    """The node does not know this call. Upgrade the node."""

    code = "unknown_call"


class ProducerError(QuiverError):
    """The producer's session does not allow this publish."""

    code = "producer_error"


class ProducerFenced(ProducerError):
    """Another producer has opened the same name. Stop this one."""

    code = "producer_fenced"


class SequenceGap(ProducerError):
    """An earlier batch is missing. The details name the expected sequence."""

    code = "sequence_gap"


class TransactionError(QuiverError):
    """The transaction does not allow this."""

    code = "transaction_error"


class TransactionAborted(TransactionError):
    """The transaction was aborted. None of it counts, and what it took is delivered again."""

    code = "transaction_aborted"


class TransactionTimedOut(TransactionAborted):
    """The transaction was open for longer than its time limit, and was aborted."""

    code = "transaction_timed_out"


class TransactionFenced(TransactionAborted):
    """Another client has begun a transaction under the same name. Stop this one."""

    code = "transaction_fenced"


class TransactionInDoubt(TransactionError):
    """No node said whether the transaction was committed. Ask for its outcome by its id."""

    code = "transaction_in_doubt"


class TransactionTooLarge(TransactionError):
    """The transaction reaches more partitions than one may. Commit more often."""

    code = "transaction_too_large"


class TransactionNotFound(TransactionError):
    """There is no such transaction, or its outcome is not known any more."""

    code = "transaction_not_found"


class Unavailable(QuiverError):
    """The node cannot do this now. Try again later."""

    code = "unavailable"
    retryable = True


class ShuttingDown(Unavailable):
    """The node is shutting down. Try again later, or on another node."""

    code = "shutting_down"


class Overloaded(Unavailable):
    """The node has reached a limit of connections or waiting requests. Try again later."""

    code = "overloaded"


class QuotaExceeded(Unavailable):
    """A quota is used up. The details name it, and the seconds after which to try again."""

    code = "quota_exceeded"


class DiskFull(Unavailable):
    """The node's disk is full. Publishing resumes by itself when there is space."""

    code = "disk_full"


class PartitionUnavailable(Unavailable):
    """The partition's log failed or is being recovered. Try again later."""

    code = "partition_unavailable"


class NotLeader(Unavailable):
    """This node is not the partition's leader. The details name the leader, if it is known."""

    code = "not_leader"


class NotEnoughReplicas(Unavailable):
    """Fewer replicas are in sync than the topic requires. Publishing resumes when they are back."""

    code = "not_enough_replicas"


class DedupIdPending(Unavailable):
    """A message with the same id is in a transaction that is still open. Try again when it has ended."""

    code = "dedup_id_pending"


class LeaderChanged(Unavailable):
    """The partition's leader changed before the publish was confirmed. It may or may not be stored."""

    code = "leader_changed"


class RequestTimeout(Unavailable):
    """The node did not answer in time. The request may or may not have been carried out."""

    code = "request_timeout"


class ConsumerSilent(Unavailable):
    """Nothing was heard of the consumer for longer than the visibility. Its session has ended."""

    code = "consumer_silent"


class ConnectionLost(Unavailable):
    """The connection was lost before the answer. The request may have been carried out."""

    code = "connection_lost"


class NodeGone(ConnectionLost):
    """The node refuses connections. Its process has probably ended."""

    code = "node_gone"


class LogError(QuiverError):
    """The log failed."""

    code = "log_error"


class FolderInUse(LogError):
    """Another process uses this data folder. Stop it, or choose another folder."""

    code = "folder_in_use"


class OffsetOutOfRange(LogError):
    """The offset is not in the log. The details name the first offset and the next one."""

    code = "offset_out_of_range"


class CorruptLog(LogError):
    """Stored data does not match its checksum. The details name the file and the position."""

    code = "corrupt_log"


class UnsupportedFormat(LogError):
    """A newer version of Quiver wrote this file. Open it with that version."""

    code = "unsupported_format"


class LogFailed(LogError):
    """A write or sync failed. The log accepts no appends until it is opened again."""

    code = "log_failed"


class LogClosed(LogError):
    """The log is closed."""

    code = "log_closed"


class MetadataError(QuiverError):
    """The metadata store failed."""

    code = "metadata_error"


class MetadataConflict(MetadataError):
    """The metadata was changed by somebody else. Read it again and retry."""

    code = "metadata_conflict"


class LeaseLost(MetadataError):
    """The metadata lease has ended and its keys are gone. Create a new lease."""

    code = "lease_lost"


class WatchCompacted(MetadataError):
    """The changes after this revision are no longer stored. List again and watch from there."""

    code = "watch_compacted"


class MetadataUnavailable(MetadataError):
    """The metadata store did not answer. A change may or may not have been made."""

    code = "metadata_unavailable"
    retryable = True


class BackupError(QuiverError):
    """A backup could not be written, read or restored."""

    code = "backup_error"


class BackupNotFound(BackupError):
    """There is no such backup at this place."""

    code = "backup_not_found"


class CorruptBackup(BackupError):
    """A backup is damaged: a file of it is missing or does not match its checksum."""

    code = "corrupt_backup"


def error_classes() -> dict[str, type[QuiverError]]:
    """All errors by their codes."""
    found: dict[str, type[QuiverError]] = {}
    waiting: list[type[QuiverError]] = [QuiverError]
    while waiting:
        error = waiting.pop()
        found[error.code] = error
        waiting += error.__subclasses__()
    return found


def error_from(code: str, message: str, details: dict[str, Any]) -> QuiverError:
    """The error that another process sent; an unknown code becomes a ``QuiverError``."""
    known = error_classes().get(code)
    if known is None:
        return QuiverError(f"{message} ({code})", **details)
    return known(message, **details)
