"""Messages that were not received: results of a peek, and the status of one message."""

from __future__ import annotations

from datetime import datetime
from itertools import repeat
from typing import Any

import msgspec
import pyarrow as pa
from pyroaring import BitMap64

from quiver.client.reader.message_rows import made, other_columns
from quiver.model.batch import StoredBatch
from quiver.model.envelope import entries_in
from quiver.model.message import Message, datetime_of
from quiver.protocol import MessageFound, Peeked, StateRead, Status


class PeekedMessage(Message, frozen=True, gc=False):
    """A pending message, as of the peek."""

    state: str = "ready"
    deliveries: int = 0


class SubscriptionStatus(msgspec.Struct, frozen=True):
    """The state of a message in one subscription."""

    subscription: str
    state: str
    """``pending``, ``delayed`` or ``leased``, or how it ended: ``acknowledged``, ``dead-lettered``,
    ``expired``, ``cancelled``, ``purged``, ``skipped`` (by a seek), ``filtered``,
    ``dropped-unread`` (by retention), ``before-subscription``, or ``finished`` if that is no longer
    known."""
    deliveries: int = 0
    consumer: str | None = None
    """The consumer that holds it, acknowledged it, or failed with it last."""
    until: datetime | None = None
    """When its delay or lease ends."""
    at: datetime | None = None
    """When it ended."""


class MessageStatus(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    offset: int
    message: Message | None
    """``None`` if retention has deleted it."""
    subscriptions: list[SubscriptionStatus]


class PendingMessages(msgspec.Struct, frozen=True):
    """The pending messages of one partition at one moment, as sets of offsets."""

    topic: str
    partition: int
    next_offset: int
    """Messages from this offset on are not included."""
    states: dict[str, BitMap64]
    """Offsets by state: ``ready``, ``delayed``, ``leased``, or ``dead`` (about to be dead-lettered)."""
    deliveries: dict[int, BitMap64]
    """Offsets by number of deliveries, for messages that were delivered."""


def pending_in(reply: StateRead, body: memoryview) -> list[PendingMessages]:
    at = 0

    def bitmaps(sizes: dict[Any, int]) -> dict[Any, BitMap64]:
        nonlocal at
        found = {}
        for label, size in sizes.items():
            found[label] = BitMap64.deserialize(bytes(body[at : at + size]))
            at += size
        return found

    return [
        PendingMessages(
            one.topic, one.partition, one.next_offset, bitmaps(one.states), bitmaps(one.deliveries)
        )
        for one in reply.partitions
    ]


def peeked_in(reply: Peeked, body: memoryview) -> list[PeekedMessage]:
    found: list[PeekedMessage] = []
    at = 0
    for batch in reply.batches:
        offsets = BitMap64.deserialize(batch.offsets).to_array()
        states = _labels(batch.states)
        deliveries = _labels(batch.deliveries)
        first = 0
        for entry in entries_in(body[at : at + batch.size]):
            here = offsets[first : first + entry.count]
            rows = entry.record_batch()
            found += made(
                PeekedMessage,
                rows,
                *_values(entry, rows, batch.topic, batch.partition, batch.topic_number, here),
                [states[offset] for offset in here],
                [deliveries.get(offset, 0) for offset in here],
            )
            first += entry.count
        at += batch.size
    return found


def status_in(reply: MessageFound, body: memoryview, topic: str) -> MessageStatus:
    message = None
    for entry in entries_in(body):
        rows = entry.record_batch()
        values = _values(entry, rows, topic, reply.partition, reply.topic_number, [reply.offset])
        message = next(made(Message, rows, *values))
    return MessageStatus(
        topic=topic,
        partition=reply.partition,
        offset=reply.offset,
        message=message,
        subscriptions=[_status(one) for one in reply.statuses],
    )


def _status(status: Status) -> SubscriptionStatus:
    until = None if status.until_us is None else datetime_of(status.until_us)
    at = None if status.at_us is None else datetime_of(status.at_us)
    return SubscriptionStatus(
        status.subscription, status.state, status.deliveries, status.consumer, until, at
    )


def _values(
    entry: StoredBatch,
    rows: pa.RecordBatch,
    topic: str,
    partition: int,
    topic_number: int,
    offsets: Any,
) -> tuple[Any, ...]:
    """The fields of a ``Message`` for each row of the entry."""
    return (
        repeat(topic),
        repeat(partition),
        offsets,
        repeat(entry.append_time),
        repeat(topic_number),
        rows.column("payload").to_pylist(),
        *other_columns(rows),
    )


def _labels(sets: dict[Any, bytes]) -> dict[int, Any]:
    """The label of each offset."""
    return {offset: label for label, data in sets.items() for offset in BitMap64.deserialize(data)}
