"""A batch of messages before and after it is stored.

``UnstoredBatch`` is what a producer made: an Arrow record batch as IPC bytes, and the producer's own
fields, under one CRC-32C. ``StoredBatch`` is the same bytes with their place in a log. Neither ever
changes the body: the producer's bytes are what is stored, replicated, fetched and decoded.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa

from quiver.model.ids import (
    LeaderEpoch,
    Microseconds,
    Offset,
    ProducerEpoch,
    ProducerId,
    Sequence,
)
from quiver.model.schema import schema_of

Bytes = bytes | bytearray | memoryview


class UnstoredBatch(msgspec.Struct, frozen=True, gc=False):
    """Messages as their producer sealed them. ``head`` is the packed producer part (see ``envelope``)."""

    head: bytes
    body: Bytes
    count: int
    columns: int
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    sequence: Sequence
    flags: int = 0
    """See ``envelope``: whether it belongs to a transaction."""
    hops: int = 0
    """Through how many other clusters it came here: its producer's id is of the first of them."""

    def size(self) -> int:
        return len(self.head) + len(self.body)


class StoredBatch(msgspec.Struct, frozen=True, gc=False):
    """Messages at their place in a log: offsets ``base_offset`` up to, not including, ``next_offset``.

    ``head`` and ``body`` are the stored bytes; they may be views of a mapped file.
    """

    base_offset: Offset
    count: int
    epoch: LeaderEpoch
    append_time: Microseconds
    durable_offset: Offset
    columns: int
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    sequence: Sequence
    head: Bytes
    body: Bytes
    flags: int = 0
    """See ``envelope``: whether it belongs to a transaction, or ends one."""
    hops: int = 0
    """Through how many other clusters it came here."""

    @property
    def next_offset(self) -> Offset:
        return Offset(self.base_offset + self.count)

    def size(self) -> int:
        """Bytes on disk, with the padding that keeps the next entry aligned."""
        return len(self.head) + len(self.body) + (-len(self.body) & 7)

    def buffers(self) -> list[Bytes]:
        """The stored bytes, whole and padded, ready to write to a file or a socket."""
        padding = -len(self.body) & 7
        if padding:
            return [self.head, self.body, bytes(padding)]
        return [self.head, self.body]

    def record_batch(self) -> pa.RecordBatch:
        """The messages as Arrow, without copying; only the columns this batch carries."""
        return pa.ipc.read_record_batch(pa.py_buffer(self.body), schema_of(self.columns))
