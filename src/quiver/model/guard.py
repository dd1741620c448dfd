"""Validates batches from outside before they are stored.

A producer's batch is decoded here once: its checksum only proves that it arrived as sent. Declared sizes
are checked before anything is decompressed, and Arrow's full validation runs before any value is read, so
that no stored batch can crash a reader.

There are two steps, so that the second can run in a thread: ``open_message`` costs a few microseconds,
``check_message`` is linear in the decompressed size of the batch.
"""

from __future__ import annotations

import struct
from datetime import datetime, timedelta

import msgspec
import pyarrow as pa

from quiver import arrow_compute as pc
from quiver.errors import InvalidBatch, MessageTooLarge
from quiver.model.batch import Bytes, UnstoredBatch
from quiver.model.envelope import BATCH_BYTES_MAX
from quiver.model.ids import NO_SEQUENCE
from quiver.model.schema import (
    COLUMN_BIT,
    DEAD_LETTER_COLUMNS,
    TIMESTAMP,
    buffers_of,
    schema_of,
)

PRIORITY_MIN, PRIORITY_MAX = 0, 9
DEDUP_ID_MAX = 256
DEDUP_IDS_MAX = 50_000
"""Messages in a batch with dedup ids. Each id is looked up while others wait."""
ORIGIN_IDENTITY_MAX = 200 + 1 + DEDUP_ID_MAX
"""A topic's name, a slash and a dedup id."""
_EPOCH = datetime(1970, 1, 1)
TIME_MIN = (datetime.min - _EPOCH) // timedelta(microseconds=1)
TIME_MAX = (datetime.max - _EPOCH) // timedelta(microseconds=1)
"""Times that calendars have, in microseconds: the years 1 to 9999. Most readers fail at others."""
_TIMES = (TIME_MIN, TIME_MAX, "in the years 1 to 9999")
_BOUNDS = {
    "priority": (PRIORITY_MIN, PRIORITY_MAX, f"between {PRIORITY_MIN} and {PRIORITY_MAX}"),
    "event_time": _TIMES,
    "origin_time": _TIMES,
    "first_delivery": _TIMES,
    "last_delivery": _TIMES,
    "deliver_at": _TIMES,
    "expires_at": _TIMES,
}
_LENGTHS = {
    "dedup_id": DEDUP_ID_MAX,
    "origin_topic": 200,
    "origin_subscription": 200,
    "last_error": 4000,
    "origin_identity": ORIGIN_IDENTITY_MAX,
}
"""Bytes of text that do not count towards a message's size, and so have a bound of their own."""
_BOUNDED = sum(COLUMN_BIT[name] for name in (*_BOUNDS, *_LENGTHS))
_BROKERS_OWN = sum(COLUMN_BIT[name] for name in DEAD_LETTER_COLUMNS)
_OPAQUE_BUFFERS = (2, 5)
"""Where the bytes of the first binary columns are: the payload alone, or the key and the payload."""
_NOT_COMPRESSED = -1
_METADATA_V5 = 4
_CONTINUATION = b"\xff\xff\xff\xff"
_METADATA_MAX, _KNOWN_MAX = 1024, 4096
_known_sizes: dict[tuple[bytes, int], tuple[int, int]] = {}
"""What ``_sizes`` found, by metadata and columns. Small batches are alike, and reading the metadata in
Python costs more than everything else about them. Of a batch that is not compressed, the metadata says
all there is to say of its sizes."""
_ARROW_ERRORS = (pa.ArrowException, EOFError, OSError, ValueError, struct.error)


class OpenedBatch(msgspec.Struct, frozen=True):
    """A batch whose sizes are known and within bounds; of its values nothing is known yet."""

    batch: UnstoredBatch
    bytes: int
    """Its size without compression."""
    work: int
    """How many bytes have to be unpacked or looked at: those of plain payloads and keys need not."""


class BatchFacts(msgspec.Struct, frozen=True):
    """What the broker wants to know of a batch it has checked."""

    rows: pa.RecordBatch
    bytes: int
    """Its size without compression."""


def check_batch(batch: UnstoredBatch, message_bytes_max: int) -> BatchFacts:
    """Decode a producer's batch, or say what is wrong with it."""
    return check_message(open_message(batch), message_bytes_max)


def require_clients_columns(batch: UnstoredBatch) -> None:
    """Refuse what only the broker sets: a forged dead letter could be redriven into any topic."""
    if batch.columns & _BROKERS_OWN:
        name = next(one for one in DEAD_LETTER_COLUMNS if batch.columns & COLUMN_BIT[one])
        raise InvalidBatch(f"column {name} is set by Quiver on dead letters: leave it out")


def require_few_ids(batch: UnstoredBatch) -> None:
    """``InvalidBatch`` if the dedup ids of a batch would hold others up."""
    if batch.columns & COLUMN_BIT["dedup_id"] and batch.count > DEDUP_IDS_MAX:
        raise InvalidBatch(
            f"a batch with dedup ids holds at most {DEDUP_IDS_MAX:,} messages, not {batch.count:,}"
        )


def open_message(batch: UnstoredBatch) -> OpenedBatch:
    """Look at what a batch says of itself; nothing is decompressed."""
    if batch.producer_id < 0 or batch.sequence < (NO_SEQUENCE if batch.flags else 0):
        raise InvalidBatch("a producer's id and sequence must not be negative")
    metadata = _metadata_of(batch.body)
    sizes = _known_sizes.get((metadata, batch.columns))
    if sizes is None:
        try:
            message = pa.ipc.read_message(batch.body)
            sizes, is_compressed = _sizes(message, batch.columns)
        except _ARROW_ERRORS as error:
            raise _not_arrow(error) from error
        if metadata and not is_compressed:
            if len(_known_sizes) >= _KNOWN_MAX:
                _known_sizes.clear()
            _known_sizes[metadata, batch.columns] = sizes
    return OpenedBatch(batch, *sizes)


def check_message(opened: OpenedBatch, message_bytes_max: int) -> BatchFacts:
    """Unpack a batch and check every value in it. May run in another thread."""
    batch = opened.batch
    try:
        rows = pa.ipc.read_record_batch(pa.py_buffer(batch.body), schema_of(batch.columns))
        rows.validate(full=True)
    except _ARROW_ERRORS as error:
        raise _not_arrow(error) from error
    if rows.num_rows != batch.count:
        raise InvalidBatch(f"the batch says {batch.count:,} messages; it has {rows.num_rows:,}")
    _check_values(rows, batch.columns)
    if opened.bytes > message_bytes_max:
        _check_message_sizes(rows, message_bytes_max)
    return BatchFacts(rows, opened.bytes)


def _not_arrow(error: Exception) -> InvalidBatch:
    reason = str(error).partition("\n")[0]
    return InvalidBatch(f"the batch is not valid Arrow: {reason[:500]}")


def _check_values(rows: pa.RecordBatch, columns: int) -> None:
    if rows.column("payload").null_count:
        raise InvalidBatch("a payload is null; it may be empty, but not null")
    if not columns & _BOUNDED:
        return
    for name, (least, most, what) in _BOUNDS.items():
        if columns & COLUMN_BIT[name] and not _all_within(rows.column(name), least, most):
            raise InvalidBatch(f"{name} must be {what}")
    for name, most in _LENGTHS.items():
        if columns & COLUMN_BIT[name]:
            longest = pc.max(pc.binary_length(rows.column(name))).as_py()
            if longest is not None and longest > most:
                raise InvalidBatch(f"{name} has {longest:,} bytes; {most:,} are allowed")


def _all_within(column: pa.Array, least: int, most: int) -> bool:
    numbers = column.view(pa.int64()) if column.type == TIMESTAMP else column
    span = pc.min_max(numbers)
    smallest, largest = span["min"].as_py(), span["max"].as_py()
    return smallest is None or least <= smallest <= largest <= most


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
            f"a message has {largest:,} bytes; this topic allows {message_bytes_max:,}",
            size=largest,
            limit=message_bytes_max,
        )


def _header_sizes(headers: pa.MapArray) -> pa.Array:
    """Bytes of all header names and values of each message."""
    lengths = pc.add(
        pc.cast(pc.binary_length(headers.keys), pa.int64()),
        pc.fill_null(pc.binary_length(headers.items), 0),
    )
    totals = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths)])
    at = pc.take(totals, headers.offsets)
    return pc.subtract(at[1:], at[:-1])


def _metadata_of(body: Bytes) -> bytes:
    """The metadata in front of a message; nothing if it is long or in another form."""
    view = memoryview(body)
    size = 8 + int.from_bytes(view[4:8], "little")
    is_usual = view[:4] == _CONTINUATION and size <= min(_METADATA_MAX, len(view))
    return bytes(view[:size]) if is_usual else b""


def _sizes(message: pa.Message, columns: int) -> tuple[tuple[int, int], bool]:
    """The bytes of a batch once it is unpacked, as it declares, and how many of them are work.

    Also whether it is compressed.
    """
    _require_batch(message)
    table = _RecordBatchTable(message)
    buffers, expected = table.buffers, buffers_of(columns)
    if len(buffers) != expected:
        raise InvalidBatch(f"the batch has {len(buffers)} buffers; its columns have {expected}")
    total = _total(message, table, buffers)
    if table.is_compressed:
        return (total, total), True
    opaque = _OPAQUE_BUFFERS[: 1 + (columns & COLUMN_BIT["key"])]
    return (total, total - sum(buffers[place][1] for place in opaque)), False


def declared_bytes(message: pa.Message) -> int:
    """The bytes of any record batch of a stream once it is unpacked, as it declares."""
    _require_batch(message)
    try:
        table = _RecordBatchTable(message)
        return _total(message, table, table.buffers)
    except _ARROW_ERRORS as error:
        raise _not_arrow(error) from error


def _require_batch(message: pa.Message) -> None:
    if message.type != "record batch":
        raise InvalidBatch(f"the body is a {message.type}, not a record batch")
    if message.metadata_version != _METADATA_V5:
        # Before version 5, compression could be named where this code does not look for it.
        raise InvalidBatch("the batch is not in version 5 of Arrow's metadata")


def _total(message: pa.Message, table: _RecordBatchTable, buffers: list[tuple[int, int]]) -> int:
    body, total = memoryview(message.body), 0
    for position, length in buffers:
        if not 0 <= position <= position + length <= len(body):
            raise InvalidBatch("a buffer lies outside the body")
        total += _declared(body, position, length) if table.is_compressed else length
        if total > BATCH_BYTES_MAX:
            raise InvalidBatch(
                f"the decompressed batch has more than the {BATCH_BYTES_MAX:,} bytes allowed"
            )
    return total


def _declared(body: memoryview, position: int, length: int) -> int:
    """The size of a compressed buffer once it is unpacked: the number in front of it."""
    if length == 0:
        return 0
    if length < 8:
        raise InvalidBatch("a compressed buffer is too short to say its size")
    (declared,) = struct.unpack_from("<q", body, position)
    if declared < _NOT_COMPRESSED:
        raise InvalidBatch("a compressed buffer says that its size is negative")
    return length - 8 if declared == _NOT_COMPRESSED else int(declared)


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
        self.is_compressed = self._field(self._table, self._COMPRESSION) is not None

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
