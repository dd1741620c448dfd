"""What a task of the sink does: publishes its rows to the target, as its part of the batch's transaction.

Nobody sees them before the driver has committed the batch with this part. The part of an attempt that failed,
or of a speculative duplicate, is not named in the commit, and aborted by it.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from quiver.client import Client
from quiver.client.transaction.shared import PartReference, TransactionPart
from quiver.client.transport.cluster import TopicLayout
from quiver.errors import InvalidRequest
from quiver.model.batch import UnstoredBatch
from quiver.model.builder import encode_record_batch
from quiver.model.guard import check_batch
from quiver.model.topic import Compression
from quiver.spark.options import WriteOptions
from quiver.spark.write.rows import destinations, messages_of

_PIECE_BYTES = 1_000_000
"""About the size of an entry."""
_PIECE_ROWS = 50_000


class TaskWriter:
    """Takes the rows of one attempt of one task."""

    def __init__(
        self, options: WriteOptions, client: Client, part: TransactionPart, task: int
    ) -> None:
        self._options = options
        self._client = client
        self._part = part
        self._turn = task
        self._layouts: dict[str, TopicLayout] = {}
        self._waiting: dict[tuple[str, int], list[pa.RecordBatch]] = {}
        self._sizes: dict[tuple[str, int], int] = {}

    def write(self, batches: Iterable[pa.RecordBatch]) -> PartReference:
        """Publish every row; returns once all are durable."""
        try:
            for rows in batches:
                self._take(rows)
            for target in list(self._waiting):
                self._send(target)
            return self._client.run(lambda _: self._part.stored())
        except BaseException:
            self._client.run(lambda _: self._part.abort())
            raise

    def _take(self, rows: pa.RecordBatch) -> None:
        messages = messages_of(rows)
        for name, place, numbers in destinations(rows, self._options.topic, self._partition_of):
            target = name, self._checked(name, place)
            chosen = messages if numbers is None else messages.take(numbers)
            self._waiting.setdefault(target, []).append(chosen)
            self._sizes[target] = self._sizes.get(target, 0) + chosen.nbytes
            if self._sizes[target] >= _PIECE_BYTES:
                self._send(target)

    def _checked(self, topic: str, place: int | None) -> int:
        """A partition that the topic has; rows that may go anywhere take turns."""
        partitions = self._layout(topic).partitions
        if place is None:
            self._turn += 1
            return partitions[self._turn % len(partitions)]
        if place not in partitions:
            raise InvalidRequest(
                f"column 'partition' has {place}; topic {topic!r} has partitions "
                f"{partitions[0]} to {partitions[-1]}"
            )
        return place

    def _send(self, target: tuple[str, int]) -> None:
        parts = self._waiting.pop(target, [])
        size = self._sizes.pop(target, 0)
        if not parts:
            return
        topic, partition = target
        whole = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
        pieces = max(1, round(size / _PIECE_BYTES), -(-len(whole) // _PIECE_ROWS))
        step = -(-len(whole) // pieces)
        settings = self._layout(topic).info.settings
        compression = Compression(self._options.compression or settings.compression)
        for at in range(0, len(whole), step):
            batch = encode_record_batch(whole.slice(at, step), compression)
            check_batch(batch, settings.message_bytes_max)
            self._publish(topic, partition, batch)

    def _publish(self, topic: str, partition: int, batch: UnstoredBatch) -> None:
        async def publish() -> None:
            await (await self._part.producer(topic)).send_encoded(batch, partition)

        self._client.run(lambda _: publish())

    def _layout(self, topic: str) -> TopicLayout:
        """How the topic was when the task first wrote to it."""
        layout = self._layouts.get(topic)
        if layout is None:
            producer = self._client.run(lambda _: self._part.producer(topic))
            layout = self._layouts[topic] = producer.opened_sender.routing
        return layout

    def _partition_of(self, topic: str, key: bytes) -> int:
        return self._layout(topic).router.partition(key)
