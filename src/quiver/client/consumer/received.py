"""Messages that were received, and how they are settled.

A ``ReceivedMessage`` is a message under a lease. Whoever received it settles it with ``ack``,
``nack``, ``reject`` or ``extend``: with a ``Client`` these wait until it is done, with an
``AsyncClient`` they are awaited. Many are settled at once with the client's methods of the same names.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import groupby, repeat
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from quiver.client.consumer.lease_times import lease_ms
from quiver.client.consumer.settlement_kind import ACK, Kind
from quiver.client.reader.columns import SCHEMA, columns_of, times_of
from quiver.client.reader.message_rows import made, other_columns
from quiver.errors import InvalidRequest
from quiver.model.batch import StoredBatch
from quiver.model.envelope import entries_in
from quiver.model.message import PRIORITY_DEFAULT, Message, datetime_of
from quiver.model.receipt import leases_in, receipt, receipts
from quiver.model.units import Duration
from quiver.protocol import PortionInfo, Received, Settlement

RECEIVED_SCHEMA = pa.schema(
    [
        pa.field("receipt", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("deliveries", pa.int32()),
        *(field for field in SCHEMA if field.name not in {"deliveries"}),
    ]
)
_RECEIVED_NAMES = RECEIVED_SCHEMA.names
_KEPT_ROWS = 1 << 10
"""Columns of one value in so many rows or fewer are kept: the next receive wants them again."""


class ReceivedMessage(Message, frozen=True, gc=False):
    """A received message."""

    subscription: str = ""
    lease: bytes = b""
    deliveries: int = 1
    """Number of deliveries, including this one."""
    deadline_us: int = 0
    settler: Any = None

    @property
    def receipt(self) -> str:
        """The receipt of this delivery, with which the message can be acknowledged."""
        return receipt(self.lease, self.offset)

    @property
    def deadline(self) -> datetime:
        """When the lease ends, unless it is extended."""
        return datetime_of(self.deadline_us)

    def ack(self, *, wait: bool | None = None) -> Any:
        """Acknowledge the message. It is not delivered again.

        A message of a consumer is acknowledged together with others, within a few milliseconds. With
        ``wait=True``, or awaited, it is stored on return. If it came too late, ``wait=True`` raises
        ``StaleReceipt``; otherwise ``on_stale`` is told. With one that was received it is always
        as with ``wait=True``.
        """
        return self.settler._settle_received(self, ACK, wait)

    def nack(
        self,
        *,
        delay: Duration | None = None,
        error: str | None = None,
        wait: bool | None = None,
    ) -> Any:
        """Report the message as failed, to be delivered again after ``delay`` or the back-off."""
        delay_ms = None if delay is None else lease_ms("delay", delay)
        kind = Kind("nack", delay_ms=delay_ms, error=error)
        return self.settler._settle_received(self, kind, wait)

    def reject(self, *, error: str | None = None, wait: bool | None = None) -> Any:
        """Make the message a dead letter now: it can never succeed."""
        return self.settler._settle_received(self, Kind("reject", error=error), wait)

    def extend(self, visibility: Duration, *, wait: bool | None = None) -> Any:
        """Extend the lease to ``visibility`` from now."""
        kind = Kind("extend", visibility_ms=lease_ms("visibility", visibility))
        return self.settler._settle_received(self, kind, wait)


def settlements(what: Any) -> list[Settlement]:
    """Received messages, receipts, a column of receipts or a received batch, as the wire has them."""
    leases: dict[bytes, BitMap64] = {}
    if isinstance(what, str | ReceivedMessage):
        what = [what]
    if isinstance(what, pa.RecordBatch | pa.Table):
        if "receipt" not in what.schema.names:
            raise InvalidRequest("the batch has no column 'receipt', which settles it")
        leases = leases_in(what.column("receipt"))
    elif isinstance(what, pa.Array | pa.ChunkedArray):
        leases = leases_in(what)
    else:
        given: list[Any] = list(what)
        if given and all(isinstance(one, str) for one in given):
            leases = leases_in(given)
        else:
            leases = leases_of(given)
    return [Settlement(lease, offsets.serialize()) for lease, offsets in leases.items()]


def leases_of(messages: Iterable[Any]) -> dict[bytes, BitMap64]:
    """The offsets of received messages, by lease."""
    offsets: dict[bytes, list[int]] = {}
    try:
        for message in messages:
            lease = message.lease
            if lease in offsets:
                offsets[lease].append(message.offset)
            else:
                offsets[lease] = [message.offset]
    except AttributeError:
        raise InvalidRequest("give received messages, receipts or a received batch") from None
    return {lease: BitMap64(these) for lease, these in offsets.items()}


def messages_in(
    reply: Received, body: memoryview, subscription: str, settler: Any
) -> list[ReceivedMessage]:
    """All that was received: as delivered, higher priorities first if the reply says so."""
    found: list[ReceivedMessage] = []
    for portion, entry, offsets, rows in _parts(reply, body):
        deliveries = _deliveries(portion, offsets)
        found += made(
            ReceivedMessage,
            rows,
            repeat(portion.topic),
            repeat(portion.partition),
            offsets,
            repeat(entry.append_time),
            repeat(portion.topic_number),
            rows.column("payload").to_pylist(),
            *other_columns(rows),
            repeat(subscription),
            repeat(portion.lease),
            repeat(1) if deliveries is None else deliveries,
            repeat(portion.deadline_us),
            repeat(settler),
        )
    if reply.by_priority and any(message.priority != PRIORITY_DEFAULT for message in found):
        found.sort(key=lambda message: -message.priority)
    return found


def batch_in(reply: Received, body: memoryview) -> pa.RecordBatch:
    """All that was received as one batch, with a column of receipts."""
    batches, at = [], 0
    for portion in reply.portions:
        offsets = np.frombuffer(BitMap64.deserialize(portion.offsets).to_array(), np.int64)
        first = 0
        entries = entries_in(body[at : at + portion.size])
        for _, run in groupby(entries, attrgetter("columns")):
            batch = _received_rows(portion, list(run), offsets[first:])
            batches.append(batch)
            first += batch.num_rows
        at += portion.size
    if not batches:
        return pa.RecordBatch.from_pylist([], schema=RECEIVED_SCHEMA)
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _received_rows(
    portion: PortionInfo, run: list[StoredBatch], offsets: np.ndarray[Any, np.dtype[np.int64]]
) -> pa.RecordBatch:
    """Entries of the same columns as one batch; their rows are at the first of the offsets."""
    rows = [entry.record_batch() for entry in run]
    joined = rows[0] if len(rows) == 1 else pa.concat_batches(rows)
    count = joined.num_rows
    numbers = pa.array(offsets[:count])
    columns = {
        **dict(zip(joined.schema.names, joined.columns, strict=True)),
        "receipt": receipts(portion.lease, numbers),
        "topic": _repeated(portion.topic, count),
        "deliveries": pa.array(_deliveries(portion, offsets[:count].tolist()), pa.int32())
        if portion.deliveries
        else _repeated(1, count),
        "offset": numbers,
        "partition": _repeated(portion.partition, count),
        "timestamp": times_of(run, [entry.count for entry in run]),
    }
    arrays = columns_of(_RECEIVED_NAMES, columns, count)
    return pa.RecordBatch.from_arrays(arrays, schema=RECEIVED_SCHEMA)


def _repeated(value: str | int, count: int) -> pa.Array:
    """A column of one text, or of one number in 32 bits."""
    return _kept(value, count) if count <= _KEPT_ROWS else _made(value, count)


def _made(value: str | int, count: int) -> pa.Array:
    kind = pa.string() if isinstance(value, str) else pa.int32()
    return pa.repeat(pa.scalar(value, kind), count)


_kept = lru_cache(32)(_made)


def _parts(
    reply: Received, body: memoryview
) -> Iterator[tuple[PortionInfo, StoredBatch, array[int], pa.RecordBatch]]:
    """Each entry with the offsets of its rows: those of the portion, in order."""
    at = 0
    for portion in reply.portions:
        offsets = BitMap64.deserialize(portion.offsets).to_array()
        first = 0
        for entry in entries_in(body[at : at + portion.size]):
            yield portion, entry, offsets[first : first + entry.count], entry.record_batch()
            first += entry.count
        at += portion.size


def _deliveries(portion: PortionInfo, offsets: Sequence[int]) -> list[int] | None:
    """How often each was delivered; ``None`` if all were delivered once."""
    if not portion.deliveries:
        return None
    counts = {n: BitMap64.deserialize(data) for n, data in portion.deliveries.items()}
    return [next((n for n, among in counts.items() if offset in among), 1) for offset in offsets]
