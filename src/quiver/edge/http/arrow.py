"""Arrow streams in requests and replies, read within bounds.

A stream has only the columns that are wanted, each of a type whose values take as many bytes as the
stream declares: a view, a dictionary or a run lets a few bytes stand for any number. Declared sizes are
added up before anything is decompressed, and every value is validated before use. Larger streams are
read and cast in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from quiver.edge.http.off_loop import off_loop
from quiver.errors import BodyTooLarge, InvalidBatch, MalformedBody
from quiver.model.builder import cast_column, require_message_columns
from quiver.model.guard import declared_bytes
from quiver.model.schema import COLUMNS

_ERRORS = (pa.ArrowException, EOFError, OSError, ValueError, IndexError, KeyError, TypeError)
_TEXTS = (pa.string(), pa.large_string())
_TEXT_OR_BYTES = (pa.binary(), pa.large_binary(), *_TEXTS)
_RECEIPT = "receipt"

Wanted = Callable[[pa.Schema], Sequence[int]]
"""Checks the columns of a stream, and says which of them to read."""


async def messages_in(data: bytes, bytes_max: int) -> pa.Table:
    """The messages of an Arrow stream, with each column as it is stored."""
    return await _read(data, bytes_max, _message_columns, _as_stored)


async def receipts_in(data: bytes, bytes_max: int) -> pa.Table:
    """The receipts of an Arrow stream. Its other columns are not read."""
    return await _read(data, bytes_max, _receipt_column, lambda table: table)


async def _read(
    data: bytes, bytes_max: int, wanted: Wanted, finish: Callable[[pa.Table], pa.Table]
) -> pa.Table:
    size = await off_loop(len(data), _check_sizes, data, bytes_max)
    # A few bytes may unpack to many.
    return await off_loop(max(size, len(data)), lambda: finish(_table_in(data, wanted)))


def _check_sizes(data: bytes, bytes_max: int) -> int:
    """The bytes of all batches once they are unpacked, as they declare."""
    total = 0
    try:
        for message in pa.ipc.MessageReader.open_stream(data):
            if message.type == "schema":
                continue
            total += declared_bytes(message)
            if total > bytes_max:
                raise BodyTooLarge(
                    f"the decompressed stream has more than the {bytes_max:,} bytes allowed"
                )
    except _ERRORS as error:
        raise _malformed(error) from error
    return total


def _table_in(data: bytes, wanted: Wanted) -> pa.Table:
    try:
        places = wanted(pa.ipc.open_stream(data).schema)
        if not places:
            return pa.table({})
        options = pa.ipc.IpcReadOptions(included_fields=list(places))
        table = pa.ipc.open_stream(data, options=options).read_all()
        table.validate(full=True)
        # A stream may have any number of batches, and each costs time however few rows it has.
        return table.combine_chunks()
    except _ERRORS as error:
        raise _malformed(error) from error


def _malformed(error: Exception) -> MalformedBody:
    reason = str(error).partition("\n")[0][:200]
    return MalformedBody(f"the body is not an Arrow stream: {reason}")


# ---------------------------------------------------------------------- columns


def _message_columns(schema: pa.Schema) -> Sequence[int]:
    require_message_columns(schema.names)
    for field in schema:
        if field.name == "payload":
            # Other types may have rows that take no bytes, and any number of them.
            _require(field.type in _TEXT_OR_BYTES, field, "text or bytes")
        elif field.name == "headers":
            _require(_is_text_map(field.type), field, "a map of text to text")
        else:
            _require(_is_plain(field.type), field, "a plain type, such as text, bytes or numbers")
    return range(len(schema))


def _receipt_column(schema: pa.Schema) -> Sequence[int]:
    places: list[int] = schema.get_all_field_indices(_RECEIPT)
    for place in places:
        _require(schema.field(place).type in _TEXT_OR_BYTES, schema.field(place), "text or bytes")
    return places


def _require(is_allowed: bool, field: pa.Field, what: str) -> None:
    if not is_allowed:
        raise InvalidBatch(f"column {field.name} must be {what}, not {field.type}")


def _is_plain(kind: pa.DataType) -> bool:
    """Whether each value takes its own bytes, or none because all are null."""
    if pa.types.is_fixed_size_binary(kind):
        return bool(kind.byte_width)
    return kind in _TEXT_OR_BYTES or pa.types.is_primitive(kind) or pa.types.is_null(kind)


def _is_text_map(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return kind.key_type in _TEXTS and kind.item_type in _TEXTS
    return bool(pa.types.is_null(kind))


def _as_stored(table: pa.Table) -> pa.Table:
    """The table with each column cast to the type that is stored; columns without values are left out."""
    columns = {
        field.name: cast_column(table.column(field.name), field)
        for field in COLUMNS
        if field.name in table.schema.names
        and (field.name == "payload" or table.column(field.name).null_count < table.num_rows)
    }
    return pa.table(columns)


def stream_of(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(memoryview(sink.getvalue()))
