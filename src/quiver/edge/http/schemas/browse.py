"""Looking at messages over HTTP: peek, browse and the state of one message."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from quiver.model.dead_letter import DeadLetter
from quiver.model.subscription import RECEIVE_MAX


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
    origin_identity: str | None = None
    dead_letter: DeadLetter | None = None


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
    """``pending``, ``delayed``, ``leased``, or how it ended: ``acknowledged``, ``dead-lettered``,
    ``expired``, ``cancelled``, ``purged``, ``skipped``, ``filtered``, ``dropped-unread``,
    ``before-subscription``, or ``finished`` if that is no longer known."""
    deliveries: int = 0
    consumer: str | None = None
    """The consumer that holds it, acknowledged it, or failed with it last."""
    until: datetime | None = None
    """When its delay or lease ends."""
    at: datetime | None = None
    """When it ended."""


class MessageState(Struct, kw_only=True):
    """A message and its states; ``message`` is null if retention has deleted it."""

    topic: str
    partition: int
    offset: int
    message: SeenMessage | None
    subscriptions: list[SubscriptionState]
