"""A list of messages as columns: the same as from each, or not at all."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from quiver.edge.http.message_columns import rows_of
from quiver.edge.http.schemas.messages import NewMessage
from quiver.model.builder import BatchBuilder, encode_record_batch
from quiver.model.guard import DEDUP_ID_MAX, check_batch

MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def new(payload: bytes = b"1", **fields: Any) -> NewMessage:
    return NewMessage(message=msgspec.Raw(payload), **fields)


def rows(*given: NewMessage, bytes_max: int = 1000) -> Any:
    return rows_of(given, [bytes(one.message) for one in given], bytes_max)


def test_the_columns_are_those_of_messages_one_by_one() -> None:
    batch = rows(
        new(b"1"),
        new(b"2", key="ü", headers={"a": "b", "c": ""}, priority=9),
        new(b"3", event_time=MOMENT, dedup_id="order-3", headers={}),
    )
    builder = BatchBuilder()
    builder.add(b"1")
    builder.add(b"2", "ü".encode(), headers=[("a", "b"), ("c", "")], priority=9)
    time_us = round(MOMENT.timestamp() * 1_000_000)
    builder.add(b"3", event_time=time_us, dedup_id="order-3")
    expected = check_batch(builder.build(), 1000).rows
    assert check_batch(encode_record_batch(batch), 1000).rows == expected


def test_headers_that_are_all_empty_are_none() -> None:
    batch = rows(new(headers={}), new(headers={}))
    assert check_batch(encode_record_batch(batch), 1000).rows.schema.names == ["payload"]


@pytest.mark.parametrize(
    "fields",
    [
        {"partition": 0},
        {"delay": 1.0},
        {"ttl": "1h"},
        {"key": "x" * 1000},
        {"headers": {"a": "x" * 1000}},
        {"payload": b"1" * 1001},
        {"dedup_id": "ü" * DEDUP_ID_MAX},
        {"key": "\ud800"},
        {"headers": {"a": "\ud800"}},
        {"dedup_id": "\ud800"},
    ],
)
def test_a_message_that_may_be_refused_is_looked_at_on_its_own(fields: dict[str, Any]) -> None:
    assert rows(new(), new(**fields)) is None
    assert rows(new(), new()) is not None
