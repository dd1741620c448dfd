"""Dead letters: messages that failed too often, stored in a topic of their own.

Each keeps its payload, key and headers and gains columns that say where it came from, how often it
was tried and why it failed last. They are ordinary messages: to be read, peeked at and sent back.
"""

from __future__ import annotations

import pyarrow as pa
from pyroaring import BitMap64

from quiver.broker.catalog import Catalog, TopicRecord
from quiver.broker.delivery.machine import DeliveryMachine
from quiver.broker.partitions import Partitions
from quiver.errors import TopicExists
from quiver.model.batch import StoredBatch, UnstoredBatch
from quiver.model.builder import encode_record_batch
from quiver.model.clock import Clock
from quiver.model.ids import Offset
from quiver.model.topic import TopicSettings

_CARRIED = ("key", "payload", "headers", "event_time", "priority")


class DeadLetters:
    def __init__(self, topics: Catalog, partitions: Partitions, clock: Clock) -> None:
        self._topics = topics
        self._partitions = partitions
        self._clock = clock

    async def store(
        self,
        destination: str,
        *,
        subscription: str,
        topic: str,
        partition: int,
        machine: DeliveryMachine,
        entries: list[StoredBatch],
        offsets: BitMap64,
    ) -> None:
        """Store these messages of the entries as dead letters, durably."""
        record = await self._destination(destination)
        target = await self._partitions.get(record, 0)
        for entry in entries:
            chosen = [o for o in offsets if entry.base_offset <= o < entry.next_offset]
            rows = entry.record_batch().take(pa.array([o - entry.base_offset for o in chosen]))
            letter = self._letters(rows, chosen, subscription, topic, partition, entry, machine)
            await target.log.wait_for_room()
            await target.publish(letter, rows)

    async def _destination(self, name: str) -> TopicRecord:
        try:
            return await self._topics.create(name, TopicSettings())
        except TopicExists:
            return self._topics.get(name)

    def _letters(
        self,
        rows: pa.RecordBatch,
        offsets: list[int],
        subscription: str,
        topic: str,
        partition: int,
        entry: StoredBatch,
        machine: DeliveryMachine,
    ) -> UnstoredBatch:
        count = len(offsets)
        columns = {name: rows.column(name) for name in _CARRIED if name in rows.schema.names}
        columns |= {
            "origin_topic": pa.array([topic] * count),
            "origin_partition": pa.array([partition] * count, pa.int32()),
            "origin_offset": pa.array(offsets, pa.int64()),
            "origin_subscription": pa.array([subscription] * count),
            "origin_time": pa.array([entry.append_time] * count, pa.timestamp("us", "UTC")),
            "deliveries": pa.array([machine.deliveries(Offset(o)) for o in offsets], pa.int32()),
            "last_error": pa.array(
                [machine.last_error(Offset(o)) or None for o in offsets], pa.string()
            ),
        }
        return encode_record_batch(pa.RecordBatch.from_pydict(columns))
