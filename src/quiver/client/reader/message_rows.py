"""Stored entries as ``Message`` values: columns become lists once, then rows are put together.

This is the one place where a read costs something for each message; a batch that has only payloads
takes the short way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count, pairwise, repeat
from typing import Any, TypeVar

import pyarrow as pa

from quiver.client.reader.columns import rows_in
from quiver.client.reader.read_ahead import Chunk
from quiver.model.dead_letter import DeadLetter
from quiver.model.message import PRIORITY_DEFAULT, Message

M = TypeVar("M", bound=Message)
_DEAD_LETTER = DeadLetter.__struct_fields__
_TIMES = ("event_time", "deliver_at", "expires_at")


def messages_of(chunk: Chunk) -> Iterator[Message]:
    """The chunk's messages, in order."""
    for entry in chunk.entries:
        if entry.base_offset < chunk.end:
            rows = rows_in(entry, chunk)
            first = max(entry.base_offset, chunk.begin)
            yield from _messages(chunk, rows, first, entry.append_time)


def _messages(chunk: Chunk, rows: pa.RecordBatch, first: int, time_us: int) -> Iterator[Message]:
    topic, partition, number = chunk.topic, chunk.partition, chunk.topic_number
    payloads = rows.column("payload").to_pylist()
    if rows.num_columns == 1:
        return (
            Message(topic, partition, offset, time_us, number, payload)
            for offset, payload in enumerate(payloads, first)
        )
    return made(
        Message,
        rows,
        repeat(topic),
        repeat(partition),
        count(first),
        repeat(time_us),
        repeat(number),
        payloads,
        *other_columns(rows),
    )


def other_columns(rows: pa.RecordBatch) -> tuple[Any, ...]:
    """What a message may have beside its payload, in the order of ``Message``: endless or full lists."""
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    missing = repeat(None)
    headers = columns.get("headers")
    priority = columns.get("priority")
    return (
        columns["key"].to_pylist() if "key" in columns else missing,
        _no_headers() if headers is None else _dicts(headers),
        repeat(PRIORITY_DEFAULT) if priority is None else _priorities(priority),
        *(
            columns[name].view(pa.int64()).to_pylist() if name in columns else missing
            for name in _TIMES
        ),
        columns["dedup_id"].to_pylist() if "dedup_id" in columns else missing,
    )


def made(kind: type[M], rows: pa.RecordBatch, *columns: Any) -> Iterator[M]:
    """Messages of this kind from their columns, and from what dead letters have beside."""
    names = rows.schema.names
    if "origin_identity" not in names and "origin_topic" not in names:
        return map(kind, *columns)
    missing: Iterable[Any] = repeat(None)
    ids = rows.column("origin_identity").to_pylist() if "origin_identity" in names else missing
    letters = _dead_letters(rows) if "origin_topic" in names else missing
    return (
        kind(*values, origin_identity=id, dead_letter=letter)
        for values, id, letter in zip(zip(*columns, strict=False), ids, letters, strict=False)
    )


def _dead_letters(rows: pa.RecordBatch) -> list[DeadLetter | None]:
    """What is known of each row that is a dead letter."""
    known = rows.select([name for name in _DEAD_LETTER if name in rows.schema.names])
    return [None if row["origin_topic"] is None else DeadLetter(**row) for row in known.to_pylist()]


def _no_headers() -> Iterator[dict[str, str]]:
    while True:
        yield {}


def _dicts(headers: pa.MapArray) -> list[dict[str, str]]:
    """The headers of each row; a row without any has an empty dict."""
    bounds = headers.offsets.to_pylist()
    begin, end = bounds[0], bounds[-1]
    names = headers.keys.slice(begin, end - begin).to_pylist()
    values = headers.items.slice(begin, end - begin).to_pylist()
    pairs = list(zip(names, values, strict=True))
    return [dict(pairs[low - begin : high - begin]) for low, high in pairwise(bounds)]


def _priorities(priority: pa.Array) -> list[int]:
    return [PRIORITY_DEFAULT if value is None else value for value in priority.to_pylist()]
