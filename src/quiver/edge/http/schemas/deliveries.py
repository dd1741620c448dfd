"""Receiving over HTTP: the query, and messages with their receipts."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from quiver.edge.http.schemas.values import Consumer, DurationText, Rest
from quiver.model.dead_letter import DeadLetter
from quiver.model.subscription import RECEIVE_MAX

WAIT_S_MAX = 20


class ReceiveQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    batch_size: Annotated[
        int, Meta(ge=1, le=RECEIVE_MAX, description="Most messages to return.")
    ] = 10
    wait: Annotated[
        Annotated[float, Meta(ge=0, le=WAIT_S_MAX)] | DurationText,
        Meta(description="Time to wait for a message if there is none: seconds, or as in '5s'."),
    ] = 0.0
    visibility: (
        Annotated[
            Rest,
            Meta(
                description="Time that a received message is hidden from other consumers: seconds, "
                "or as in '5m'."
            ),
        ]
        | UnsetType
    ) = UNSET
    consumer: Consumer = ""


class StreamQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    consumer: Consumer = ""
    visibility: Rest | UnsetType = UNSET


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
    origin_identity: str | None = None
    """What identified a redriven message at first: ``topic/dedup_id``, or its id."""
    dead_letter: DeadLetter | None = None


class Delivered(Struct, kw_only=True):
    messages: list[DeliveredMessage]
