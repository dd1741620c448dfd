"""Builds batches from messages, on the publisher's side.

``BatchBuilder`` collects messages one by one into columns; ``encode_record_batch`` takes an Arrow record
batch. A column that is empty in the whole batch is left out.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import msgspec
import pyarrow as pa

from quiver.errors import InvalidBatch, InvalidRequest
from quiver.model.batch import UnstoredBatch
from quiver.model.envelope import BATCH_COUNT_MAX, UNSTAMPED, ProducerStamp, seal_batch
from quiver.model.schema import COLUMN_BIT, COLUMNS, PAYLOAD, schema_of
from quiver.model.topic import Compression

MESSAGE_OVERHEAD = 16
"""About what a message costs in a batch beside its own bytes; for bounding batches by size."""

_OPTIONS = {
    Compression.LZ4: pa.ipc.IpcWriteOptions(compression="lz4"),
    Compression.ZSTD: pa.ipc.IpcWriteOptions(compression="zstd"),
}
_BINARY = pa.binary()
_FEW = 16
"""Up to so many payloads it is quicker to lay out a column here than to have Arrow look at each."""
_encode_json = msgspec.json.Encoder().encode


def encode_payload(payload: Any) -> bytes:
    """Bytes as they are, text as UTF-8, anything else as JSON."""
    if isinstance(payload, bytes):
        return payload
    if isinstance(payload, bytearray | memoryview):
        return bytes(payload)
    try:
        return payload.encode() if isinstance(payload, str) else _encode_json(payload)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        what = "UTF-8" if isinstance(payload, str) else "JSON"
        raise InvalidRequest(f"the payload cannot be encoded as {what}: {error}") from error


class BatchBuilder:
    """Collects messages for one batch, column by column.

    A message that has nothing but its payload may also be appended to ``payloads`` directly; its
    size is then the caller's to count.
    """

    __slots__ = ("_columns", "payloads", "size")

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self._columns: dict[str, list[Any]] = {}
        self.size = 0

    def __len__(self) -> int:
        return len(self.payloads)

    def add(self, payload: bytes, key: bytes | None = None, **rest: Any) -> int:
        """Add a message; its place in the batch. ``rest`` are other columns by name, or ``None``."""
        place, size = len(self.payloads), len(payload) + MESSAGE_OVERHEAD
        for name, value in rest.items():
            if value is not None:
                size += _size_of(name, value)
        if key is not None:
            self._put("key", place, key)
            size += len(key)
        for name, value in rest.items():
            if value is not None:
                self._put(name, place, value)
        self.payloads.append(payload)
        self.size += size
        return place

    def _put(self, name: str, place: int, value: Any) -> None:
        column = self._columns.get(name)
        if column is None:
            column = self._columns[name] = []
        if len(column) < place:
            column.extend([None] * (place - len(column)))
        column.append(value)

    def build(
        self,
        compression: Compression = Compression.NONE,
        stamp: ProducerStamp = UNSTAMPED,
    ) -> UnstoredBatch:
        count = len(self.payloads)
        columns = PAYLOAD
        for name, column in self._columns.items():
            columns |= COLUMN_BIT[name]
            column.extend([None] * (count - len(column)))
        schema = schema_of(columns)
        if columns == PAYLOAD and count <= _FEW:
            arrays = [_few_payloads(self.payloads)]
        else:
            arrays = [
                _array(self._columns.get(field.name, self.payloads), field) for field in schema
            ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        return seal_batch(_serialize(batch, compression), count, columns, stamp)


def encode_record_batch(
    batch: pa.RecordBatch,
    compression: Compression = Compression.NONE,
    stamp: ProducerStamp = UNSTAMPED,
    flags: int = 0,
) -> UnstoredBatch:
    """An Arrow batch with a ``payload`` column and any of the others, as a batch of messages."""
    require_message_columns(batch.schema.names)
    if batch.num_rows == 0 or batch.num_rows > BATCH_COUNT_MAX:
        raise InvalidBatch(
            f"a batch holds 1 to {BATCH_COUNT_MAX:,} messages, not {batch.num_rows:,}"
        )
    if batch.column("payload").null_count:
        raise InvalidBatch("a payload is null; it may be empty, but not null")
    columns, arrays = 0, []
    for field in COLUMNS:
        if (
            field.name in batch.schema.names
            and batch.column(field.name).null_count < batch.num_rows
        ):
            columns |= COLUMN_BIT[field.name]
            arrays.append(cast_column(batch.column(field.name), field))
    arranged = pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns))
    return seal_batch(_serialize(arranged, compression), batch.num_rows, columns, stamp, flags)


def require_message_columns(names: Sequence[str]) -> None:
    """``InvalidBatch`` unless these are columns of messages, each once, with ``payload`` among them."""
    unknown = [name for name in names if name not in COLUMN_BIT]
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if unknown or repeated or "payload" not in names:
        what = "it has no payload"
        if unknown or repeated:
            what = f"it has {', '.join([*unknown, *(f'{name} twice' for name in repeated)])}"
        raise InvalidBatch(
            f"not a batch of messages: {what[:500]}; the columns are "
            f"{', '.join(field.name for field in COLUMNS)}"
        )


def _serialize(batch: pa.RecordBatch, compression: Compression) -> memoryview:
    """The batch as one IPC message, without its schema."""
    if compression is Compression.NONE:
        return memoryview(batch.serialize())
    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, batch.schema, options=_OPTIONS[compression]).write_batch(batch)
    stream = memoryview(sink.getvalue())
    schema_size = 8 + int.from_bytes(stream[4:8], "little")
    return stream[schema_size:]


def _few_payloads(payloads: list[bytes]) -> pa.Array:
    """A column of a few payloads, in half the time of ``pa.array``."""
    try:
        offsets = array("i", accumulate(map(len, payloads), initial=0))
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(payloads))]
    except (TypeError, OverflowError) as error:
        raise InvalidBatch(f"column payload must be binary: {error}") from error
    return pa.Array.from_buffers(_BINARY, len(payloads), buffers)


def _array(values: list[Any], field: pa.Field) -> pa.Array:
    try:
        return pa.array(values, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidBatch(f"column {field.name} must be {field.type}: {error}") from error


def cast_column(array: Any, field: pa.Field) -> Any:
    """The values in the type of the field; ``InvalidBatch`` if they cannot be."""
    if array.type == field.type:
        return array
    try:
        return array.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidBatch(f"column {field.name} must be {field.type}: {error}") from error


def _size_of(name: str, value: Any) -> int:
    if name not in COLUMN_BIT:
        raise InvalidBatch(f"a message lacks {name}")
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, Mapping):
        try:
            return sum(len(header) + len(text) + 8 for header, text in value.items())
        except TypeError as error:
            raise InvalidBatch(f"{name} must map text to text") from error
    return 8
