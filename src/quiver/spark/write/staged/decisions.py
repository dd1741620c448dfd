"""What a sink of an earlier version has decided: for each batch, which staged entries are published.

Decisions are messages of a small topic of the sink's own. The first of a batch is the one that holds. Each
also says which sequences its entries get in their partitions: publishing them again changes nothing. This
version makes no decisions, but finishes the last.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from quiver.client import Client
from quiver.errors import PermissionDenied, TopicNotFound

_TAIL = 64
"""Decisions that are looked at; of one batch there are as many as drivers that tried."""


class StagedEntry(msgspec.Struct, frozen=True, array_like=True):
    """An entry of the staging topic, and the partition that it is for."""

    staging_partition: int
    offset: int
    count: int
    topic: str
    partition: int


class Target(msgspec.Struct, frozen=True, array_like=True):
    """A partition that is published to, and the sequence of the sink's next message there."""

    topic: str
    partition: int
    sequence: int


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    batch: int
    producer_id: int
    staging_number: int | None
    """``None`` if there is nothing to publish."""
    entries: list[StagedEntry]
    targets: list[Target]
    """Every partition that the sink has ever published to, as it is before this batch."""


def last_decision(client: Client, sink: str) -> Decision | None:
    """The decision of the newest batch."""
    return max(_tail(client, sink), key=lambda one: one.batch, default=None)


def _tail(client: Client, sink: str) -> Iterable[Decision]:
    """The newest decisions that hold: each is of a later batch than any before it."""
    try:
        (partition,) = client.describe_topic(sink).partitions
    except (TopicNotFound, PermissionDenied):  # whoever made decisions had all permissions for them
        return []
    next_offset, start = partition.next_offset or 0, partition.start_offset or 0
    begin = max(start, next_offset - _TAIL)
    if begin == next_offset:
        return []
    held: dict[int, Decision] = {}
    with client.read(sink, start=begin, end=next_offset) as reader:
        for message in reader.messages():
            one = msgspec.json.decode(message.payload, type=Decision)
            if one.batch > max(held, default=-1):
                held[one.batch] = one
    return held.values()
