"""Publishing over HTTP: messages to store, and the result for each."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from quiver.edge.http.problems import Problem
from quiver.edge.http.schemas.values import DedupId, Delay, DurationText, Key, Priority, Seconds
from quiver.model.topic import Acks

BATCH_MAX = 10_000


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
    deliver_at: (
        Annotated[
            datetime, Meta(description="When it may be delivered, instead of `delay`.", tz=True)
        ]
        | None
    ) = None
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


class PublishQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """How to publish; the options of JSON messages are in the body."""

    acks: (
        Annotated[
            Acks,
            Meta(description="Which replicas must have the messages, instead of the topic's."),
        ]
        | UnsetType
    ) = UNSET


class RawQuery(PublishQuery, kw_only=True, forbid_unknown_fields=True):
    """Options of a message whose body is not JSON."""

    key: Annotated[str, Meta(max_length=1000)] | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    delay: DurationText | UnsetType = UNSET
    deliver_at: Annotated[datetime, Meta(tz=True)] | UnsetType = UNSET
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
