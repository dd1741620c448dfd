"""Browse stored messages over HTTP: the newest, or from an offset or time, optionally of a key.

A request is bounded in messages, bytes and time, and changes nothing. To read a whole topic, use a
reader.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import UNSET

from quiver import arrow_compute as pc
from quiver.client import AsyncClient
from quiver.client.reader.range import Position
from quiver.edge.http.call import Call
from quiver.edge.http.edge import encode
from quiver.edge.http.json_text import as_json
from quiver.edge.http.off_loop import off_loop
from quiver.edge.http.operation import JSON, Operation, Reply
from quiver.edge.http.schemas.browse import Browsed, BrowsedMessage, BrowseQuery
from quiver.errors import (
    InvalidRequest,
    LogError,
    OffsetOutOfRange,
    PartitionNotFound,
    PartitionUnavailable,
    QuiverError,
    TopicNotFound,
    Unavailable,
)
from quiver.model.dead_letter import DeadLetter
from quiver.model.ids import Microseconds, Offset, PartitionIndex
from quiver.model.message import PRIORITY_DEFAULT, time_us_of
from quiver.model.message_id import MessageId
from quiver.protocol import PartitionInfo, TopicInfo

EXAMINED_MAX = 100_000
"""Most messages that a search for a key reads."""
_BYTES_MAX = 8 << 20
_SECONDS_MAX = 3.0


async def browse_messages(call: Call) -> Reply:
    query = call.query(BrowseQuery)
    if query.offset is not UNSET and query.time is not UNSET:
        raise InvalidRequest("time: give offset or time, not both", field="time")
    info = await call.client.describe_topic(call.path["topic"])
    look = _Look(call.client, info, query)
    is_whole = True
    try:
        async with asyncio.timeout(_SECONDS_MAX):
            await look.run()
    except TimeoutError:
        is_whole = False
    found = look.newest() if look.is_backwards else look.first()
    return Reply(
        200,
        encode(
            Browsed(
                messages=found,
                examined=look.examined,
                complete=is_whole and not look.is_cut,
            )
        ),
    )


class _Look:
    """One search of a topic. If it is stopped, what it found so far remains."""

    def __init__(self, client: AsyncClient, info: TopicInfo, query: BrowseQuery) -> None:
        self._client = client
        self._info = info
        self._limit = query.batch_size
        self._key = None if query.key is UNSET else query.key.encode()
        self._start: Position | None = None
        if query.offset is not UNSET:
            self._start = query.offset
        elif query.time is not UNSET:
            self._start = _moment(query.time)
        self._partitions = info.partitions
        if query.partition is not UNSET:
            self._partitions = [one for one in info.partitions if one.index == query.partition]
            if not self._partitions:
                raise PartitionNotFound(f"{info.name!r} has no partition {query.partition}")
        self.is_backwards = self._start is None
        self.is_cut = False
        self.examined = 0
        self._bytes = 0
        self._found: list[BrowsedMessage] = []

    async def run(self) -> None:
        share = max(1, EXAMINED_MAX // len(self._partitions))
        unread: QuiverError | None = None
        for partition in self._partitions:
            try:
                await self._read(partition, share)
            except OffsetOutOfRange:
                raise
            except (LogError, Unavailable) as error:
                self.is_cut, unread = True, error
        if unread is not None and not self._found:
            raise unread

    def newest(self) -> list[BrowsedMessage]:
        """The newest first."""
        ordered = sorted(self._found, key=_place, reverse=True)
        return ordered[: self._limit]

    def first(self) -> list[BrowsedMessage]:
        return sorted(self._found, key=_place)[: self._limit]

    async def _read(self, partition: PartitionInfo, share: int) -> None:
        if partition.start_offset is None or partition.next_offset is None:
            raise PartitionUnavailable(
                f"partition {partition.index} of {self._info.name!r} cannot be read now; see the node's log"
            )
        first, end = partition.start_offset, partition.next_offset
        span = self._limit if self._key is None else share
        start: Position = max(first, end - span) if self._start is None else self._start
        if isinstance(start, int):
            if not first <= start < end:
                return
            self.is_cut |= self.is_backwards and self._key is not None and start > first
        reader = self._client.read(self._info.name, partition=partition.index, start=start, end=end)
        examined, left = 0, self._limit
        async with reader:
            async for batch in reader:
                for rows in self._wanted(batch, share - examined):
                    taken = rows if self.is_backwards else rows.slice(0, left)
                    await self._add(taken, partition.index)
                    left -= taken.num_rows
                examined += batch.num_rows
                self.examined += batch.num_rows
                if self._bytes > _BYTES_MAX or examined >= share:
                    self.is_cut = True
                    return
                if left <= 0 and not self.is_backwards:
                    return

    def _wanted(self, batch: pa.RecordBatch, room: int) -> Iterator[pa.RecordBatch]:
        rows = batch.slice(0, max(0, room))
        if self._key is not None:
            rows = rows.filter(pc.equal(rows.column("key"), pa.scalar(self._key, pa.binary())))
        if rows.num_rows:
            yield rows

    async def _add(self, rows: pa.RecordBatch, partition: int) -> None:
        if self.is_backwards and rows.num_rows > self._limit:
            rows = rows.slice(rows.num_rows - self._limit)
        size = rows.get_total_buffer_size() if rows.num_rows < 10 else rows.nbytes
        self._bytes += size
        self._found += await off_loop(size, self._browsed, rows, partition)
        if self.is_backwards and len(self._found) > 4 * self._limit:
            self._found = self.newest()

    def _browsed(self, rows: pa.RecordBatch, partition: int) -> list[BrowsedMessage]:
        return [_browsed(self._info, partition, row) for row in rows.to_pylist()]


def _place(message: BrowsedMessage) -> tuple[datetime, int, int]:
    return message.timestamp, message.partition, message.offset


def _moment(text: str) -> str | datetime:
    try:
        return msgspec.convert(text, datetime)
    except msgspec.ValidationError:
        return text


def _browsed(info: TopicInfo, partition: int, row: dict[str, Any]) -> BrowsedMessage:
    payload, key = row["payload"] or b"", row["key"]
    body: Any = as_json(payload)
    id = MessageId(
        append_time=Microseconds(time_us_of(row["timestamp"])),
        topic=info.number,
        partition=PartitionIndex(partition),
        offset=Offset(row["offset"]),
    )
    browsed = BrowsedMessage(
        id=str(id),
        body=body,
        headers=dict(row["headers"] or ()),
        topic=info.name,
        partition=partition,
        offset=row["offset"],
        timestamp=row["timestamp"],
        bytes=len(payload),
        event_time=row["event_time"],
        deliver_at=row["deliver_at"],
        expires_at=row["expires_at"],
        dedup_id=row["dedup_id"],
    )
    if body is None:
        browsed.body, browsed.encoding = base64.b64encode(payload).decode(), "base64"
    if key is not None:
        try:
            browsed.key = key.decode()
        except UnicodeDecodeError:
            browsed.key, browsed.key_encoding = base64.b64encode(key).decode(), "base64"
    if row["priority"] not in (None, PRIORITY_DEFAULT):
        browsed.priority = row["priority"]
    if row["origin_topic"] is not None:
        browsed.dead_letter = DeadLetter(
            **{field: row[field] for field in DeadLetter.__struct_fields__}
        )
    return browsed


OPERATIONS = (
    Operation(
        method="GET",
        path="/topics/{topic}/messages",
        id="browse_messages",
        handler=browse_messages,
        summary="Browse stored messages: the newest, or from an offset or time.",
        tag="topics",
        query=BrowseQuery,
        replies={200: ("The messages.", {JSON: Browsed})},
        errors=(
            InvalidRequest,
            TopicNotFound,
            PartitionNotFound,
            OffsetOutOfRange,
            PartitionUnavailable,
        ),
    ),
)
