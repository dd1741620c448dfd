"""Stores messages that failed too often in a dead-letter queue.

Each keeps its payload, key, headers and first identity, and gains columns with its origin, its attempts
and the last error. Dead letters are ordinary messages: they can be read, peeked, received and redriven.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import pyarrow as pa
from pyroaring import BitMap64

from quiver import arrow_compute as pc
from quiver.broker.delivery.machine.offset_sets import offset_numbers, offset_range
from quiver.broker.delivery.machine.view import DeliveryView
from quiver.broker.remote.partition_router import PartitionRouter
from quiver.broker.topics.catalog import TopicRecord
from quiver.model.batch import StoredBatch
from quiver.model.ids import Offset, PartitionIndex
from quiver.model.message_id import MessageId
from quiver.model.schema import TIMESTAMP

_CARRIED = ("key", "payload", "headers", "event_time", "priority")


class DeadLetters:
    """``queue_for`` sees to it that a queue for dead letters is there, and gives its topic."""

    def __init__(
        self, router: PartitionRouter, queue_for: Callable[[str], Awaitable[TopicRecord]]
    ) -> None:
        self._router = router
        self._queue_for = queue_for

    async def store(
        self,
        destination: str,
        *,
        subscription: str,
        topic: TopicRecord,
        partition: int,
        view: DeliveryView,
        entries: list[StoredBatch],
        offsets: BitMap64,
    ) -> None:
        """Store these messages of the entries as dead letters, durably and once."""
        target = await self._queue_for(destination)
        for entry in entries:
            chosen = offsets & offset_range(entry.base_offset, entry.next_offset)
            letters = _letters(entry, chosen, subscription, topic, partition, view)
            await self._router.store(target, 0, letters)


def _letters(
    entry: StoredBatch,
    offsets: BitMap64,
    subscription: str,
    topic: TopicRecord,
    partition: int,
    view: DeliveryView,
) -> pa.RecordBatch:
    """The messages with what is to be known of them; their ids let a repeat be told from them."""
    places, count = offset_numbers(offsets), len(offsets)
    rows = entry.record_batch().take(pa.array(places - entry.base_offset))
    first, last = view.delivery_times(offsets)
    each = [Offset(offset) for offset in offsets]
    origin = f"dead/{subscription}/{topic.number}/{partition}"
    columns = {name: rows.column(name) for name in _CARRIED if name in rows.schema.names}
    columns |= {
        "dedup_id": pa.array([f"{origin}/{offset}" for offset in each]),
        "origin_topic": pa.repeat(pa.scalar(topic.name, pa.string()), count),
        "origin_partition": pa.repeat(pa.scalar(partition, pa.int32()), count),
        "origin_offset": pa.array(places),
        "origin_subscription": pa.repeat(pa.scalar(subscription, pa.string()), count),
        "origin_time": pa.repeat(pa.scalar(entry.append_time, TIMESTAMP), count),
        "deliveries": pa.array([view.deliveries(offset) for offset in each], pa.int32()),
        "last_error": pa.array([view.last_error(offset) or None for offset in each], pa.string()),
        "first_delivery": pa.array([first.get(offset) for offset in each], TIMESTAMP),
        "last_delivery": pa.array([last.get(offset) for offset in each], TIMESTAMP),
        "origin_identity": _identities(rows, entry, topic, partition, each),
    }
    return pa.RecordBatch.from_pydict(columns)


def _identities(
    rows: pa.RecordBatch,
    entry: StoredBatch,
    topic: TopicRecord,
    partition: int,
    offsets: list[Offset],
) -> pa.Array:
    """What identified each message first: as ``Message.identity``, for rows of one entry."""
    place = partial(
        MessageId,
        append_time=entry.append_time,
        topic=topic.number,
        partition=PartitionIndex(partition),
    )
    identities = pa.array([str(place(offset=offset)) for offset in offsets], pa.string())
    if "dedup_id" in rows.schema.names:
        dedup_ids = pc.binary_join_element_wise(topic.name, rows.column("dedup_id"), "/")
        identities = pc.coalesce(dedup_ids, identities)
    if "origin_identity" in rows.schema.names:
        identities = pc.coalesce(rows.column("origin_identity"), identities)
    return identities
