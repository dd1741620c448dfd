"""Administering subscriptions over HTTP: seek, purge and redrive."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from quiver.edge.http.schemas.values import Name
from quiver.model.subscription import FILTER_LENGTH_MAX


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
    filter: Annotated[str, Meta(max_length=FILTER_LENGTH_MAX)] | None = None


class RedriveOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    to: Annotated[Name, Meta(description="Send the messages to this topic instead.")] | None = None
    filter: Annotated[str, Meta(max_length=FILTER_LENGTH_MAX)] | None = None
    dry_run: Annotated[bool, Meta(description="Only count the messages.")] = False
    rate: Annotated[float, Meta(gt=0, le=1e9, description="Most messages per second.")] | None = (
        None
    )
    max_messages: Annotated[int, Meta(ge=1, le=10**12)] | None = None


class Count(Struct, kw_only=True):
    """The number of messages."""

    messages: int
