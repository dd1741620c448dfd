"""What etcd's JSON gateway is asked and answers: only the fields that Quiver uses.

Bytes travel as base64 and 64-bit numbers as text; a field at its zero is left out of an answer.
"""

from __future__ import annotations

from typing import Any

import msgspec

Request = dict[str, Any]


class Header(msgspec.Struct, frozen=True):
    revision: int = 0


class KeyValue(msgspec.Struct, frozen=True):
    key: bytes = b""
    value: bytes = b""
    mod_revision: int = 0


class RangeReply(msgspec.Struct, frozen=True):
    header: Header = Header()
    kvs: tuple[KeyValue, ...] = ()
    more: bool = False


class Outcome(msgspec.Struct, frozen=True):
    """Of one operation inside a transaction; those that only change something leave it empty."""

    response_range: RangeReply | None = None


class TxnReply(msgspec.Struct, frozen=True):
    header: Header = Header()
    succeeded: bool = False
    responses: tuple[Outcome, ...] = ()


class LeaseReply(msgspec.Struct, frozen=True):
    """A grant, or a keep-alive; of a lease that is gone a keep-alive answers without a TTL."""

    ID: int = 0
    TTL: int = 0


class AuthReply(msgspec.Struct, frozen=True):
    token: str = ""


class VersionReply(msgspec.Struct, frozen=True):
    etcdserver: str = ""


class Event(msgspec.Struct, frozen=True):
    kv: KeyValue
    type: str = "PUT"


class WatchReply(msgspec.Struct, frozen=True):
    header: Header = Header()
    created: bool = False
    canceled: bool = False
    cancel_reason: str = ""
    compact_revision: int = 0
    events: tuple[Event, ...] = ()


class Failure(msgspec.Struct, frozen=True):
    """An error of etcd; in a stream older gateways call the code ``grpc_code``."""

    code: int = 0
    grpc_code: int = 0
    message: str = ""
    error: str = ""

    @property
    def number(self) -> int:
        return self.code or self.grpc_code

    @property
    def text(self) -> str:
        return self.message or self.error


class Streamed(msgspec.Struct, frozen=True):
    """One line of a stream: an answer or an error, neither looked into yet."""

    result: msgspec.Raw = msgspec.Raw(b"")
    error: Failure | None = None


class Nothing(msgspec.Struct, frozen=True):
    """An answer in which nothing is of interest."""
