"""What stands between bytes from outside and the log.

A producer's batch is decoded here once, before it is stored: its checksum only says that it arrived
as it was sent. Sizes that it declares are checked before anything is decompressed, and Arrow's own
full validation runs before anybody reads a value, so that no stored batch can crash a reader.
"""

from __future__ import annotations

import struct
from itertools import pairwise

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from quiver.errors import InvalidBatch, MessageTooLarge
from quiver.model.batch import UnstoredBatch
from quiver.model.envelope import BATCH_BYTES_MAX
from quiver.model.schema import schema_of

PRIORITY_MIN, PRIORITY_MAX = 0, 9
DEDUP_ID_MAX = 256
_NOT_COMPRESSED = -1


class BatchFacts(msgspec.Struct, frozen=True):
    """What the broker wants to know of a batch it has checked."""

    rows: pa.RecordBatch
    bytes: int
    """Its size without compression."""


def check_batch(batch: UnstoredBatch, message_bytes_max: int) -> BatchFacts:
    """Decode a producer's batch, or say what is wrong with it."""
    try:
        message = pa.ipc.read_message(batch.body)
        size = _uncompressed_size(message)
        rows = pa.ipc.read_record_batch(message, schema_of(batch.columns))
        rows.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, struct.error) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidBatch(f"the batch is not valid Arrow: {reason}") from error
    if rows.num_rows != batch.count:
        raise InvalidBatch(f"the batch says {batch.count:,} messages; it has {rows.num_rows:,}")
    _check_values(rows)
    if size > message_bytes_max:
        _check_message_sizes(rows, message_bytes_max)
    return BatchFacts(rows, size)


def _check_values(rows: pa.RecordBatch) -> None:
    names = rows.schema.names
    if rows.column("payload").null_count:
        raise InvalidBatch("a payload may be empty, not null")
    if "priority" in names:
        span = pc.min_max(rows.column("priority")).as_py()
        if (
            span["min"] is not None
            and not PRIORITY_MIN <= span["min"] <= span["max"] <= PRIORITY_MAX
        ):
            raise InvalidBatch(f"a priority is between {PRIORITY_MIN} and {PRIORITY_MAX}")
    if "dedup_id" in names:
        longest = pc.max(pc.binary_length(rows.column("dedup_id"))).as_py()
        if longest is not None and longest > DEDUP_ID_MAX:
            raise InvalidBatch(f"a dedup id has at most {DEDUP_ID_MAX} bytes, not {longest}")


def _check_message_sizes(rows: pa.RecordBatch, message_bytes_max: int) -> None:
    """Payload, key and headers of each message together stay within the topic's bound."""
    sizes = pc.cast(pc.binary_length(rows.column("payload")), pa.int64())
    if "key" in rows.schema.names:
        sizes = pc.add(sizes, pc.fill_null(pc.binary_length(rows.column("key")), 0))
    if "headers" in rows.schema.names:
        sizes = pc.add(sizes, _header_sizes(rows.column("headers")))
    largest = pc.max(sizes).as_py()
    if largest > message_bytes_max:
        raise MessageTooLarge(
            f"a message has {largest:,} bytes; this topic takes at most {message_bytes_max:,}",
            size=largest,
            limit=message_bytes_max,
        )


def _header_sizes(headers: pa.MapArray) -> pa.Array:
    """Bytes of all header names and values of each message."""
    lengths = pc.add(
        pc.cast(pc.binary_length(headers.keys), pa.int64()),
        pc.fill_null(pc.binary_length(headers.items), 0),
    )
    totals = [0, *pc.cumulative_sum(lengths).to_pylist()]
    offsets = headers.offsets.to_pylist()
    return pa.array([totals[end] - totals[begin] for begin, end in pairwise(offsets)], pa.int64())


def _uncompressed_size(message: pa.Message) -> int:
    """How many bytes the batch has once decompressed, as it declares; refused past the bound."""
    if message.type != "record batch":
        raise InvalidBatch(f"the body is a {message.type}, not a record batch")
    body, table = memoryview(message.body), _RecordBatchTable(message)
    if not table.is_compressed:
        return len(body)
    total = 0
    for position, length in table.buffers:
        if length:
            if not 0 <= position <= position + length <= len(body) or length < 8:
                raise InvalidBatch("a buffer lies outside the body")
            (declared,) = struct.unpack_from("<q", body, position)
            total += length - 8 if declared == _NOT_COMPRESSED else declared
            if declared < _NOT_COMPRESSED or total > BATCH_BYTES_MAX:
                raise InvalidBatch(
                    f"the batch unpacks to more than the {BATCH_BYTES_MAX:,} bytes allowed"
                )
    return total


class _RecordBatchTable:
    """The few fields of an Arrow RecordBatch flatbuffer that must be known before it is decoded."""

    _HEADER, _BUFFERS, _COMPRESSION = 2, 2, 3

    def __init__(self, message: pa.Message) -> None:
        self._data = memoryview(message.metadata)
        root = self._offset(0)
        header = self._field(root, self._HEADER)
        if header is None:
            raise InvalidBatch("the message has no header")
        self._table = header + self._offset(header)

    @property
    def is_compressed(self) -> bool:
        return self._field(self._table, self._COMPRESSION) is not None

    @property
    def buffers(self) -> list[tuple[int, int]]:
        """Position and length of each buffer in the body."""
        field = self._field(self._table, self._BUFFERS)
        if field is None:
            return []
        vector = field + self._offset(field)
        count = self._offset(vector)
        numbers = struct.unpack_from(f"<{2 * count}q", self._data, vector + 4)
        return list(zip(numbers[::2], numbers[1::2], strict=True))

    def _offset(self, at: int) -> int:
        return int.from_bytes(self._data[at : at + 4], "little")

    def _field(self, table: int, number: int) -> int | None:
        """Where the table keeps its field, or ``None`` if it is not set."""
        (back,) = struct.unpack_from("<i", self._data, table)
        vtable = table - back
        (vtable_size,) = struct.unpack_from("<H", self._data, vtable)
        slot = 4 + 2 * number
        if slot + 2 > vtable_size:
            return None
        (place,) = struct.unpack_from("<H", self._data, vtable + slot)
        return table + place if place else None
