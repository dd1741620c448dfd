"""A list of messages as the columns of one Arrow batch, checked by column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from quiver.edge.http.schemas.messages import NewMessage
from quiver.model.guard import DEDUP_ID_MAX
from quiver.model.message import time_us_of
from quiver.model.schema import COLUMN_BIT, PAYLOAD, schema_of

_ALONE = ("partition", "delay", "deliver_at", "ttl")
"""Fields that only messages on their own have: they depend on the topic, or on the time of now."""


def rows_of(
    given: Sequence[NewMessage], payloads: Sequence[bytes], bytes_max: int
) -> pa.RecordBatch | None:
    """The messages as a batch; ``None`` if each has to be looked at on its own.

    That is so if one may be refused: the others are stored all the same. ``bytes_max`` bounds a message.
    """
    if any(_column(given, name) is not None for name in _ALONE):
        return None
    columns: dict[str, Sequence[Any]] = {"payload": payloads}
    size_max = max(map(len, payloads))
    try:
        if (keys := _column(given, "key")) is not None:
            columns["key"] = encoded = [None if key is None else key.encode() for key in keys]
            size_max += max(len(key) for key in encoded if key is not None)
        if (headers := _column(given, "headers")) is not None:
            columns["headers"] = [list(one.items()) if one else None for one in headers]
            size_max += max(_size(one) for one in headers if one is not None)
        if (moments := _column(given, "event_time")) is not None:
            columns["event_time"] = [None if one is None else time_us_of(one) for one in moments]
        if (dedup_ids := _column(given, "dedup_id")) is not None:
            columns["dedup_id"] = dedup_ids
            if max(len(one.encode()) for one in dedup_ids if one is not None) > DEDUP_ID_MAX:
                return None
        if (priorities := _column(given, "priority")) is not None:
            columns["priority"] = priorities
        return None if size_max > bytes_max else _batch(columns)
    except (UnicodeEncodeError, pa.ArrowException):
        return None


def _column(given: Sequence[NewMessage], name: str) -> list[Any] | None:
    """The values of one field; ``None`` if no message has it."""
    values = [getattr(new, name) for new in given]
    return None if values.count(None) == len(values) else values


def _size(headers: dict[str, str]) -> int:
    return sum(len(name.encode()) + len(value.encode()) for name, value in headers.items())


def _batch(columns: dict[str, Sequence[Any]]) -> pa.RecordBatch:
    mask = PAYLOAD
    for name in columns:
        mask |= COLUMN_BIT[name]
    schema = schema_of(mask)
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
