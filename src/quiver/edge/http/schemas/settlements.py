"""Settling over HTTP: ack, nack, reject and extend."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from quiver.edge.http.schemas.values import Receipt, Rest

RECEIPTS_MAX = 10_000
Error = Annotated[str, Meta(max_length=4000, description="Error text, stored with a dead letter.")]


class Ack(Struct, kw_only=True, forbid_unknown_fields=True):
    receipts: Annotated[list[Receipt], Meta(min_length=1, max_length=RECEIPTS_MAX)]


class Nack(Ack, kw_only=True, forbid_unknown_fields=True):
    delay: (
        Annotated[Rest, Meta(description="Time until the next delivery. Default: the back-off.")]
        | None
    ) = None
    error: Error | None = None


class Reject(Ack, kw_only=True, forbid_unknown_fields=True):
    error: Error | None = None


class Extend(Ack, kw_only=True, forbid_unknown_fields=True):
    visibility: Annotated[Rest, Meta(description="The new lease time, from now.")]


class Settled(Struct, kw_only=True):
    settled: int
