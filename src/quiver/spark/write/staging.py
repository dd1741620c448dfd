"""What a task of the sink does: puts its rows into a staging topic, where no reader looks for them.

Rows lie there encoded, one entry for each piece of a target partition, ready to be published byte
for byte. Only the entries that are named in a decision ever are: those of a failed attempt or of a
speculative duplicate stay behind and go when the staging topic goes.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from quiver.client import Client, Delivery, Producer
from quiver.client.transport.cluster import TopicLayout
from quiver.errors import InvalidRequest
from quiver.model.builder import encode_record_batch
from quiver.model.guard import check_batch
from quiver.model.topic import Compression, Retention
from quiver.spark.options import WriteOptions
from quiver.spark.write.rows import destinations, messages_of

SINKS = "spark-sink."
"""What the topics of all sinks begin with."""
STAGING_PARTITIONS = 4
MESSAGE_BYTES_MAX = 32 << 20
_PIECE_BYTES = 1_000_000
"""About the size of an entry."""
_PIECE_ROWS = 50_000


class StagedEntry(msgspec.Struct, frozen=True, array_like=True):
    """An entry of the staging topic, and the partition that it is for."""

    staging_partition: int
    offset: int
    count: int
    topic: str
    partition: int


class StagedRows(WriterCommitMessage):
    """What a task tells the driver: whose rows these are, and where they lie."""

    def __init__(self, sink: str, batch: int, number: int, entries: list[StagedEntry]) -> None:
        self.sink = sink
        self.batch = batch
        self.number = number
        """The staging topic's number: a topic of the same name that was made later has another."""
        self.entries = entries


def sink_name(owner: str) -> str:
    """The topic in which a sink keeps its decisions; its staging topics begin with it."""
    return f"{SINKS}{owner}"


def staging_topic(sink: str, batch: int) -> str:
    return f"{sink}.{batch}"


def batch_of(sink: str, topic: str) -> int | None:
    """The batch that a staging topic of this sink is of; ``None`` if it is another's."""
    owner, _, batch = topic.rpartition(".")
    return int(batch) if owner == sink and batch.isdigit() else None


class StagingWriter:
    """Takes the rows of one attempt of one task."""

    def __init__(self, options: WriteOptions, sink: str, batch: int, task: int) -> None:
        self._options = options
        self._client: Client = options.nodes.task_client()
        self._name = staging_topic(sink, batch)
        self._task = self._turn = task
        self._layouts: dict[str, TopicLayout] = {}
        self._waiting: dict[tuple[str, int], list[pa.RecordBatch]] = {}
        self._sizes: dict[tuple[str, int], int] = {}
        self._sent: list[tuple[Delivery, int, tuple[str, int], int]] = []
        self._sink, self._batch = sink, batch

    def write(self, batches: Iterable[pa.RecordBatch]) -> StagedRows:
        """Stage every row; returns once all are durable."""
        rows = filter(len, batches)
        first = next(rows, None)
        if first is None:
            return StagedRows(self._sink, self._batch, 0, [])
        info = self._client.create_topic(
            self._name,
            partitions=STAGING_PARTITIONS,
            retention=Retention(age=None),
            message_bytes_max=MESSAGE_BYTES_MAX,
            exist_ok=True,
        )
        with self._client.producer(self._name) as producer:
            for some in chain([first], rows):
                self._take(some, producer)
            for target in list(self._waiting):
                self._send(target, producer)
            producer.flush()
            entries = [self._entry(*one) for one in self._sent]
        return StagedRows(self._sink, self._batch, info.number, entries)

    def _take(self, rows: pa.RecordBatch, producer: Producer) -> None:
        messages = messages_of(rows)
        topic = self._options.topic
        for name, place, numbers in destinations(rows, topic, self._partition_of):
            target = name, self._checked(name, place)
            chosen = messages if numbers is None else messages.take(numbers)
            self._waiting.setdefault(target, []).append(chosen)
            self._sizes[target] = self._sizes.get(target, 0) + chosen.nbytes
            if self._sizes[target] >= _PIECE_BYTES:
                self._send(target, producer)

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

    def _send(self, target: tuple[str, int], producer: Producer) -> None:
        parts = self._waiting.pop(target, [])
        size = self._sizes.pop(target, 0)
        if not parts:
            return
        whole = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
        pieces = max(1, round(size / _PIECE_BYTES), -(-len(whole) // _PIECE_ROWS))
        step = -(-len(whole) // pieces)
        settings = self._layout(target[0]).info.settings
        compression = Compression(self._options.compression or settings.compression)
        home = self._home(*target)
        for at in range(0, len(whole), step):
            batch = encode_record_batch(whole.slice(at, step), compression)
            check_batch(batch, settings.message_bytes_max)
            self._sent.append((producer.send_encoded(batch, home), home, target, batch.count))

    def _home(self, topic: str, partition: int) -> int:
        """Where rows for a partition are staged: if possible on the node that leads it too."""
        staging, leader = self._layout(self._name), self._layout(topic).address(partition)
        near = [one for one in staging.partitions if staging.address(one) == leader]
        homes = near or staging.partitions
        return homes[self._task % len(homes)]

    def _entry(self, sent: Delivery, home: int, target: tuple[str, int], count: int) -> StagedEntry:
        offset = sent.result().offset
        assert offset is not None, "what is acknowledged has an offset"
        return StagedEntry(home, offset, count, *target)

    def _layout(self, topic: str) -> TopicLayout:
        layout = self._layouts.get(topic)
        if layout is None:
            layout = self._layouts[topic] = self._client.run(
                lambda client: client.cluster.refresh(topic)
            )
        return layout

    def _partition_of(self, topic: str, key: bytes) -> int:
        return self._layout(topic).router.partition(key)
