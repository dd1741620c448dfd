"""The frames of the WebSocket protocol: what a consumer says, and what it is told.

``quiver.json.v1`` has text frames in both directions. With ``quiver.arrow.v1`` deliveries are binary
frames, each an Arrow stream with a column of receipts, and a binary frame from the consumer is an
Arrow stream whose receipts are acknowledged; everything else is as in JSON.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct

from quiver.edge.http.json_text import decode
from quiver.edge.http.problems import Problem
from quiver.edge.http.schemas.deliveries import DeliveredMessage
from quiver.edge.http.schemas.settlements import RECEIPTS_MAX
from quiver.edge.http.schemas.values import Receipt, Rest

CREDIT_MAX = 1_000_000
JSON_PROTOCOL = "quiver.json.v1"
ARROW_PROTOCOL = "quiver.arrow.v1"
Reference = bool | int | float | Annotated[str, Meta(max_length=200)]
"""What a consumer calls a frame of its own; the answer has the same."""
Receipts = Annotated[list[Receipt], Meta(min_length=1, max_length=RECEIPTS_MAX)]


class Frame(Struct, kw_only=True, tag_field="type", forbid_unknown_fields=True, omit_defaults=True):
    """One text frame."""


class Credit(Frame, tag="credit"):
    """The consumer will take so many messages more."""

    messages: Annotated[int, Meta(ge=1, le=CREDIT_MAX)]


class SettleFrame(Frame, kw_only=True):
    receipts: Receipts
    ref: Reference | None = None
    """If given, the frame is answered with ``settled`` and the same ``ref``."""


class AckFrame(SettleFrame, tag="ack"):
    pass


class NackFrame(SettleFrame, tag="nack"):
    delay: Rest | None = None
    error: Annotated[str, Meta(max_length=4000)] | None = None


class RejectFrame(SettleFrame, tag="reject"):
    error: Annotated[str, Meta(max_length=4000)] | None = None


class ExtendFrame(SettleFrame, tag="extend", kw_only=True):
    visibility: Rest


class Ping(Frame, tag="ping"):
    ref: Reference | None = None


class MessagesFrame(Frame, tag="messages"):
    messages: list[DeliveredMessage]


class SettledFrame(Frame, tag="settled"):
    settled: int
    ref: Reference | None = None


class ProblemFrame(Frame, tag="problem"):
    """Something went wrong; ``ref`` is that of the frame that is at fault, if it had one."""

    problem: Problem
    ref: Reference | None = None


class Pong(Frame, tag="pong"):
    ref: Reference | None = None


Said = Credit | AckFrame | NackFrame | RejectFrame | ExtendFrame | Ping
_said: msgspec.json.Decoder[Said] = msgspec.json.Decoder(Said)


def frame_in(text: str) -> Said:
    """The frame that a consumer sent; ``MalformedBody`` or ``InvalidRequest`` if it is none."""
    return decode(_said, text.encode("utf-8", "surrogatepass"))


class _Call(Struct):
    ref: Any = UNSET


_call: msgspec.json.Decoder[_Call] = msgspec.json.Decoder(_Call)


def has_ref(text: str) -> bool:
    """Whether a frame that is wrong has a ``ref``: then its consumer waits for an answer to it."""
    try:
        return _call.decode(text).ref is not UNSET
    except msgspec.ValidationError:
        return False


def ref_in(text: str) -> Reference | None:
    """The ``ref`` of a frame that has one; ``None`` if it is itself what is wrong."""
    try:
        ref: Reference = msgspec.convert(_call.decode(text).ref, Reference)
    except msgspec.ValidationError:
        return None
    return ref
