"""Every error a user of Quiver can meet.

Each class has a stable ``code`` that travels over every edge, and says whether the same call may
succeed if it is simply made again. Facts a program may want are in ``details``.

    QuiverError
    ├── InvalidRequest
    │   ├── InvalidSetting
    │   ├── InvalidBatch
    │   ├── InvalidFilter
    │   ├── MessageTooLarge
    │   ├── TopicNotFound
    │   ├── TopicExists
    │   ├── PartitionNotFound
    │   ├── StaleLayout
    │   ├── SubscriptionNotFound
    │   ├── SubscriptionExists
    │   ├── MessageNotFound
    │   ├── InvalidReceipt
    │   ├── StaleReceipt
    │   ├── TokenNotFound
    │   ├── NodeNotFound
    │   └── NotACluster
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
    └── MetadataError
        ├── MetadataConflict
        ├── LeaseLost
        ├── WatchCompacted
        └── MetadataUnavailable
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
    """A setting is outside its bounds or not understood."""

    code = "invalid_setting"


class InvalidBatch(InvalidRequest):
    """The bytes are not a message batch."""

    code = "invalid_batch"


class InvalidFilter(InvalidRequest):
    """The filter is not understood; details name the position of the mistake."""

    code = "invalid_filter"


class MessageTooLarge(InvalidRequest):
    """A message or batch is larger than the topic allows."""

    code = "message_too_large"


class TopicNotFound(InvalidRequest):
    """There is no such topic."""

    code = "topic_not_found"


class TopicExists(InvalidRequest):
    """A topic of this name exists already."""

    code = "topic_exists"


class PartitionNotFound(InvalidRequest):
    """The topic has no such partition."""

    code = "partition_not_found"


class StaleLayout(InvalidRequest):
    """The topic's partitions have changed: describe the topic again and route by the new layout."""

    code = "stale_layout"
    retryable = True


class SubscriptionNotFound(InvalidRequest):
    """There is no such subscription or queue."""

    code = "subscription_not_found"


class SubscriptionExists(InvalidRequest):
    """A subscription or queue of this name exists already."""

    code = "subscription_exists"


class MessageNotFound(InvalidRequest):
    """The topic has no message of this id."""

    code = "message_not_found"


class InvalidReceipt(InvalidRequest):
    """Not a receipt that Quiver gave out, or one of another queue."""

    code = "invalid_receipt"


class StaleReceipt(InvalidRequest):
    """The receipt is of an earlier delivery: its lease has ended, and the message may be with another."""

    code = "stale_receipt"


class TokenNotFound(InvalidRequest):
    """There is no such token."""

    code = "token_not_found"


class NodeNotFound(InvalidRequest):
    """The cluster has no such node."""

    code = "node_not_found"


class NotACluster(InvalidRequest):
    """This node is on its own: a cluster's nodes share their metadata in etcd."""

    code = "not_a_cluster"


class AccessRefused(QuiverError):
    """Not for whoever asked."""

    code = "access_refused"


class Unauthenticated(AccessRefused):
    """The node does not know who asks: the token or certificate is missing, wrong, expired or revoked."""

    code = "unauthenticated"


class PermissionDenied(AccessRefused):
    """Whoever asked may not do this; details name the permission and the resource."""

    code = "permission_denied"


class HttpError(QuiverError):
    """The request is not one that the HTTP edge takes."""

    code = "http_error"


class MalformedRequest(HttpError):
    """The bytes are not an HTTP request; the connection is closed."""

    code = "malformed_request"


class MalformedBody(HttpError):
    """The body is not what its content type says: not JSON, not Arrow, or badly packed."""

    code = "malformed_body"


class PathNotFound(HttpError):
    """There is nothing at this path; /openapi.json lists the paths."""

    code = "path_not_found"


class MethodNotAllowed(HttpError):
    """The path does not take this method; the Allow header lists those it takes."""

    code = "method_not_allowed"


class NotAcceptable(HttpError):
    """Nothing that the Accept header asks for can be given."""

    code = "not_acceptable"


class UnsupportedMediaType(HttpError):
    """The path does not take bodies of this content type or encoding."""

    code = "unsupported_media_type"


class BodyTooLarge(HttpError):
    """The body is larger than the node takes, as it is or once it is unpacked."""

    code = "body_too_large"


class HeadersTooLarge(HttpError):
    """The request line and the headers are larger than the node takes."""

    code = "headers_too_large"


class BodyTimeout(HttpError):
    """The body took too long to arrive."""

    code = "body_timeout"


class ProtocolError(QuiverError):
    """The bytes received are not the native protocol; the connection is closed."""

    code = "protocol_error"


class UnsupportedProtocol(ProtocolError):
    """Client and server share no version of the protocol."""

    code = "unsupported_protocol"


class UnknownCall(ProtocolError):
    """The server does not know this call."""

    code = "unknown_call"


class ProducerError(QuiverError):
    """The producer's session does not allow this publish."""

    code = "producer_error"


class ProducerFenced(ProducerError):
    """Another producer of the same name has taken over; this one must stop."""

    code = "producer_fenced"


class SequenceGap(ProducerError):
    """A batch before this one is missing; details name the sequence that was expected."""

    code = "sequence_gap"


class Unavailable(QuiverError):
    """Not now: the same call may succeed later."""

    code = "unavailable"
    retryable = True


class ShuttingDown(Unavailable):
    """The node is shutting down."""

    code = "shutting_down"


class Overloaded(Unavailable):
    """The node has as much to do as it allows itself."""

    code = "overloaded"


class QuotaExceeded(Unavailable):
    """Whoever asked has used up a quota; details name it, and after how many seconds to try again."""

    code = "quota_exceeded"


class DiskFull(Unavailable):
    """The disk is full: publishing resumes by itself when there is space again."""

    code = "disk_full"


class PartitionUnavailable(Unavailable):
    """The partition's log failed or is being recovered."""

    code = "partition_unavailable"


class NotLeader(Unavailable):
    """This node does not lead the partition; details name the leader, if one is known."""

    code = "not_leader"


class NotEnoughReplicas(Unavailable):
    """Fewer replicas are in sync than the topic asks for: publishing waits for them to come back."""

    code = "not_enough_replicas"


class LeaderChanged(Unavailable):
    """The partition's leader changed before the publish was confirmed; it may be stored or not."""

    code = "leader_changed"


class RequestTimeout(Unavailable):
    """The request was not answered in time; it may or may not have been carried out."""

    code = "request_timeout"


class ConnectionLost(Unavailable):
    """The connection broke before the answer came; the request may have been carried out."""

    code = "connection_lost"


class NodeGone(ConnectionLost):
    """Nobody listens at the node's address any more: its process seems to have ended."""

    code = "node_gone"


class LogError(QuiverError):
    """The log could not do what was asked."""

    code = "log_error"


class FolderInUse(LogError):
    """Another process has this data folder open."""

    code = "folder_in_use"


class OffsetOutOfRange(LogError):
    """The offset is not in the log; details name the first offset still there and the next one."""

    code = "offset_out_of_range"


class CorruptLog(LogError):
    """Stored bytes do not match their checksum; details name the file and the position."""

    code = "corrupt_log"


class UnsupportedFormat(LogError):
    """The file was written by a newer version of Quiver."""

    code = "unsupported_format"


class LogFailed(LogError):
    """A write or sync failed: the log takes no appends until it is opened again."""

    code = "log_failed"


class LogClosed(LogError):
    """The log is closed."""

    code = "log_closed"


class MetadataError(QuiverError):
    """The metadata store could not do what was asked."""

    code = "metadata_error"


class MetadataConflict(MetadataError):
    """A key is not at the revision the commit expects: read it again and decide anew."""

    code = "metadata_conflict"


class LeaseLost(MetadataError):
    """The lease has ended and the keys under it are gone: grant a new one and put them again."""

    code = "lease_lost"


class WatchCompacted(MetadataError):
    """Changes after that revision are forgotten: list again, and watch from the listing's."""

    code = "watch_compacted"


class MetadataUnavailable(MetadataError):
    """The metadata store did not answer; a change may or may not have been made."""

    code = "metadata_unavailable"
    retryable = True


def error_classes() -> dict[str, type[QuiverError]]:
    """Every error by its code."""
    found: dict[str, type[QuiverError]] = {}
    waiting: list[type[QuiverError]] = [QuiverError]
    while waiting:
        error = waiting.pop()
        found[error.code] = error
        waiting += error.__subclasses__()
    return found


def error_from(code: str, message: str, details: dict[str, Any]) -> QuiverError:
    """The error that another process described; one of an unknown code stays a ``QuiverError``."""
    known = error_classes().get(code)
    if known is None:
        return QuiverError(f"{message} ({code})", **details)
    return known(message, **details)
