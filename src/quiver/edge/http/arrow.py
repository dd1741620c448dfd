"""Arrow streams in requests and replies, read within bounds.

Declared sizes are added up before anything is decompressed, and every value is validated before use.
"""

from __future__ import annotations

import asyncio

import pyarrow as pa

from quiver.errors import BodyTooLarge, InvalidBatch, MalformedBody, QuiverError
from quiver.model.guard import declared_bytes

_ERRORS = (pa.ArrowException, EOFError, OSError, ValueError, IndexError, KeyError, TypeError)
_TEXT_OR_BYTES = (pa.binary(), pa.large_binary(), pa.string(), pa.large_string())
_IN_A_THREAD_BYTES = 64 << 10


async def table_in(data: bytes, bytes_max: int) -> pa.Table:
    """The rows of an Arrow stream."""
    if len(data) < _IN_A_THREAD_BYTES:
        return _table_in(data, bytes_max)
    return await asyncio.to_thread(_table_in, data, bytes_max)


def _table_in(data: bytes, bytes_max: int) -> pa.Table:
    try:
        _check_sizes(data, bytes_max)
        table = pa.ipc.open_stream(data).read_all()
        table.validate(full=True)
    except QuiverError:
        raise
    except _ERRORS as error:
        reason = str(error).partition("\n")[0][:200]
        raise MalformedBody(f"the body is not an Arrow stream: {reason}") from error
    for name in ("payload", "receipt"):
        # Other types may have rows that take no bytes, and any number of them.
        if name in table.schema.names and table.schema.field(name).type not in _TEXT_OR_BYTES:
            raise InvalidBatch(
                f"column {name} must be text or bytes, not {table.schema.field(name).type}"
            )
    return table


def _check_sizes(data: bytes, bytes_max: int) -> None:
    total = 0
    for message in pa.ipc.MessageReader.open_stream(data):
        if message.type == "schema":
            continue
        total += declared_bytes(message)
        if total > bytes_max:
            raise BodyTooLarge(
                f"the decompressed stream has more than the {bytes_max:,} bytes allowed"
            )


def stream_of(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(memoryview(sink.getvalue()))
