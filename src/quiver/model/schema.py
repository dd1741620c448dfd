"""The Arrow schema of a message batch, version 1.

A batch carries only the columns that have a value in it. ``columns`` is a bit mask over ``COLUMNS``
that says which; with it the schema is known and need not be stored. Columns may be added at the end
and never change their place, name or type.
"""

from __future__ import annotations

from functools import cache

import pyarrow as pa

TIMESTAMP = pa.timestamp("us", tz="UTC")

COLUMNS: tuple[pa.Field, ...] = (
    pa.field("key", pa.binary()),
    pa.field("payload", pa.binary()),
    pa.field("headers", pa.map_(pa.string(), pa.string())),
    pa.field("event_time", TIMESTAMP),
    pa.field("priority", pa.int8()),
    pa.field("deliver_at", TIMESTAMP),
    pa.field("expires_at", TIMESTAMP),
    pa.field("dedup_id", pa.string()),
    pa.field("sequence", pa.int64()),
    pa.field("origin_topic", pa.string()),
    pa.field("origin_partition", pa.int32()),
    pa.field("origin_offset", pa.int64()),
    pa.field("origin_subscription", pa.string()),
    pa.field("origin_time", TIMESTAMP),
    pa.field("deliveries", pa.int32()),
    pa.field("last_error", pa.string()),
    pa.field("first_delivery", TIMESTAMP),
    pa.field("last_delivery", TIMESTAMP),
    pa.field("origin_identity", pa.string()),
)

COLUMN_BIT: dict[str, int] = {field.name: 1 << place for place, field in enumerate(COLUMNS)}
PAYLOAD = COLUMN_BIT["payload"]
ALL_COLUMNS = (1 << len(COLUMNS)) - 1
DEAD_LETTER_COLUMNS = tuple(
    field.name for field in COLUMNS[[field.name for field in COLUMNS].index("origin_topic") :]
)
"""What the broker notes about dead letters and redriven messages. No client may set these."""


@cache
def buffers_of(columns: int) -> int:
    """How many buffers a record batch with these columns has."""
    return sum(_buffers(field.type) for field in schema_of(columns))


def _buffers(kind: pa.DataType) -> int:
    children = (kind.field(place).type for place in range(kind.num_fields))
    return int(kind.num_buffers) + sum(map(_buffers, children))


@cache
def schema_of(columns: int) -> pa.Schema:
    """The schema of a batch that carries these columns, in their fixed order."""
    assert 0 < columns <= ALL_COLUMNS, f"unknown columns in mask {columns:#x}"
    return pa.schema([field for place, field in enumerate(COLUMNS) if columns >> place & 1])
