"""Which messages a filter matches: by example, column by column."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from quiver.errors import InvalidBatch
from quiver.model.builder import BatchBuilder
from quiver.model.filter import parse_filter
from quiver.model.filter.column import KINDS
from quiver.model.schema import COLUMN_BIT, COLUMNS, TIMESTAMP, schema_of
from tests.paths import REPOSITORY

MESSAGES: list[dict[str, Any]] = [
    {
        "key": b"customer-7",
        "headers": [("region", "eu"), ("x-test", "1")],
        "priority": 9,
        "event_time": datetime(2025, 12, 31, tzinfo=UTC),
        "dedup_id": "a",
    },
    {
        "key": b"order-1",
        "headers": [("region", "us"), ("region", "eu")],
        "priority": 5,
        "event_time": datetime(2026, 1, 1, tzinfo=UTC),
        "dedup_id": "b",
    },
    {"key": b"order_2", "headers": [("region", None), ("odd name", "it's")], "priority": 0},
    {"key": b"\xff\x00%", "headers": [], "dedup_id": "100%"},
    {},
]

TYPES = {field.name: field.type for field in COLUMNS}


def batch_of(messages: Sequence[dict[str, Any]], *, with_empty: bool = False) -> pa.RecordBatch:
    """The messages as Arrow, without the columns that are null in all of them unless they are wanted."""
    arrays = {
        name: pa.array([message.get(name) for message in messages], kind)
        for name, kind in TYPES.items()
        if with_empty or any(message.get(name) is not None for message in messages)
    }
    arrays["payload"] = pa.array([b""] * len(messages), pa.binary())
    return pa.RecordBatch.from_pydict(arrays)


def matched(text: str, rows: pa.RecordBatch, **extra: pa.Array) -> list[int]:
    """The numbers of the messages that match."""
    mask = parse_filter(text).mask(rows, extra)
    assert mask.dtype == np.bool_
    assert len(mask) == rows.num_rows
    return [int(row) for row in np.flatnonzero(mask)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("headers.region = 'eu'", [0]),
        ("headers.region = 'us'", [1]),
        ("headers.region != 'eu'", [1]),
        ("headers.region <> 'eu'", [1]),
        ("not headers.region = 'eu'", [1]),
        ("headers.region > 'eu'", [1]),
        ("headers.region <= 'eu'", [0]),
        ("headers.region in ('eu', 'us')", [0, 1]),
        ("headers.region not in ('eu', 'asia')", [1]),
        ("headers.region is null", [2, 3, 4]),
        ("headers.region is not null", [0, 1]),
        ("headers['x-test'] is null", [1, 2, 3, 4]),
        ("not headers['x-test'] is null", [0]),
        ("headers.x-test = '1'", [0]),
        ("headers['odd name'] = 'it''s'", [2]),
        ("headers.REGION is null", [0, 1, 2, 3, 4]),
        ("headers.region like 'e%'", [0]),
        ("headers.region not like 'e%'", [1]),
        ("headers.region in ('eu', 'us') and not headers['x-test'] is null", [0]),
    ],
)
def test_headers(text: str, expected: list[int]) -> None:
    assert matched(text, batch_of(MESSAGES)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("key = 'customer-7'", [0]),
        ("key != 'customer-7'", [1, 2, 3]),
        ("key < 'd'", [0]),
        ("key >= 'order-1'", [1, 2, 3]),
        ("key in ('customer-7', 'order-1', 'no')", [0, 1]),
        ("key not in ('customer-7', 'order-1', 'no')", [2, 3]),
        ("key is null", [4]),
        ("key = 'customer-7' or key like 'order-%'", [0, 1]),
        ("key like 'order_%'", [1, 2]),
        (r"key like 'order\_%'", [2]),
        ("key like '%-_'", [0, 1]),
        ("key like '__\\%'", [3]),
        ("key like '%'", [0, 1, 2, 3]),
        ("key like 'customer-7'", [0]),
        ("key like ''", []),
        ("key like '%r%'", [0, 1, 2]),
        ("key not like '%r%'", [3]),
        ("dedup_id = 'a'", [0]),
        (r"dedup_id like '%\%'", [3]),
        ("dedup_id not in ('a')", [1, 3]),
    ],
)
def test_keys_and_dedup_ids(text: str, expected: list[int]) -> None:
    assert matched(text, batch_of(MESSAGES)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("priority >= 5", [0, 1]),
        ("priority = 4", [3, 4]),
        ("priority < 4", [2]),
        ("priority != 4", [0, 1, 2]),
        ("priority <> 4", [0, 1, 2]),
        ("priority > -1", [0, 1, 2, 3, 4]),
        ("priority < 9223372036854775807", [0, 1, 2, 3, 4]),
        ("priority > 128", []),
        ("priority in (9, 0)", [0, 2]),
        ("priority not in (9, 0, 300)", [1, 3, 4]),
        ("priority is null", []),
        ("event_time < '2026-01-01T00:00:00Z'", [0]),
        ("event_time <= '2026-01-01'", [0, 1]),
        ("event_time = '2026-01-01T02:00:00+02:00'", [1]),
        ("event_time in ('2026-01-01', '2026-01-02')", [1]),
        ("event_time not in ('2026-01-01', '2026-01-02')", [0]),
        ("event_time is null", [2, 3, 4]),
        ("not event_time > '2025-12-31T12:00:00Z'", [0]),
    ],
)
def test_numbers_and_times(text: str, expected: list[int]) -> None:
    assert matched(text, batch_of(MESSAGES)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("true", [0, 1, 2, 3, 4]),
        ("false", []),
        ("not true or priority = 9", [0]),
        ("priority = 9 or priority = 5 and headers.region = 'eu'", [0]),
        ("(priority = 9 or priority = 5) and headers.region = 'us'", [1]),
        ("not (priority = 9 or key is null)", [1, 2, 3]),
        ("not (priority = 9 and key = 'customer-7')", [1, 2, 3, 4]),
        ("NOT Key IS NULL AND priority IN (9) OR FALSE".replace("Key", "key"), [0]),
        ("not not not priority = 9", [1, 2, 3, 4]),
        ("event_time = '2026-01-01'\n\tor\r\n  dedup_id='a'", [0, 1]),
    ],
)
def test_logic(text: str, expected: list[int]) -> None:
    assert matched(text, batch_of(MESSAGES)) == expected


def test_what_is_unknown_matches_neither_a_test_nor_its_opposite() -> None:
    rows = batch_of(MESSAGES)
    either = "headers.region = 'eu' or not headers.region = 'eu'"
    assert matched(either, rows) == [0, 1]
    assert matched(f"not ({either})", rows) == []
    assert matched("headers.region = 'eu' or priority >= 0", rows) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", ["key", "dedup_id", "headers.region", "event_time", "offset"])
def test_a_column_that_the_batch_lacks_is_null(name: str) -> None:
    rows = batch_of([{}, {}])
    value = "1" if name == "offset" else "'2026-01-01'"
    assert matched(f"{name} is null", rows) == [0, 1]
    assert matched(f"{name} is not null", rows) == []
    assert matched(f"{name} = {value}", rows) == []
    assert matched(f"{name} != {value}", rows) == []
    assert matched(f"{name} not in ({value})", rows) == []


def test_a_priority_that_the_batch_lacks_is_the_default() -> None:
    assert matched("priority = 4", batch_of([{}, {}])) == [0, 1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("offset >= 11", [1, 2]),
        ("offset >= 9007199254740993", [2]),
        ("partition = 3", [0, 1, 2]),
        ("timestamp < '2026-01-01T00:00:00.000002Z'", [0, 1]),
        ("attempts > 3", [0]),
        ("attempts is null", [2]),
    ],
)
def test_columns_that_the_caller_supplies(text: str, expected: list[int]) -> None:
    start = 1767225600 * 1_000_000
    extra = {
        "offset": pa.array([10, 11, (1 << 53) + 1], pa.int64()),
        "partition": pa.array([3, 3, 3], pa.int8()),
        "timestamp": pa.array([start, start + 1, start + 2], TIMESTAMP),
        "attempts": pa.array([4, 3, None], pa.int32()),
    }
    assert matched(text, batch_of(MESSAGES[:3]), **extra) == expected


def test_supplied_columns_may_also_be_in_the_batch() -> None:
    rows = batch_of(MESSAGES[:3]).append_column("offset", pa.array([1, 2, 3], pa.int64()))
    assert matched("offset > 1", rows) == [1, 2]


def test_a_column_of_another_type_is_an_error_of_the_batch() -> None:
    rows = pa.RecordBatch.from_pydict({"priority": ["high"]})
    with pytest.raises(InvalidBatch, match="priority must be int8"):
        parse_filter("priority = 1").mask(rows)


def test_a_slice_is_as_good_as_a_batch() -> None:
    rows = batch_of(MESSAGES * 5)
    for text in (
        "headers.region = 'eu'",
        "key like '%r%'",
        "priority > 4",
        "headers.region is null",
    ):
        whole = set(matched(text, rows))
        for start in range(len(MESSAGES) * 3):
            part = matched(text, rows.slice(start, 9))
            assert part == sorted(row - start for row in whole if start <= row < start + 9)


def test_a_stored_batch_with_headers_of_null_rows() -> None:
    """Arrow lets a null row span entries; those are nobody's headers."""
    names = pa.array(["region", "region"])
    headers = pa.MapArray.from_arrays(
        pa.array([0, 1, 2], pa.int32()), names, pa.array(["eu", "eu"]), mask=pa.array([True, False])
    )
    rows = pa.RecordBatch.from_arrays([headers], names=["headers"])
    assert matched("headers.region = 'eu'", rows) == [1]


def test_entries_outside_every_row_are_nobodys_headers() -> None:
    headers = pa.MapArray.from_arrays(
        pa.array([1, 1, 2], pa.int32()), pa.array(["a"] * 3), pa.array(["1", "2", "3"])
    )
    rows = pa.RecordBatch.from_arrays([headers], names=["headers"])
    assert matched("headers.a is not null", rows) == [1]
    assert matched("headers.a in ('1', '3')", rows) == []


def test_a_batch_as_the_builder_makes_it() -> None:
    builder = BatchBuilder()
    builder.add(b"1", key=b"k", headers={"region": "eu"})
    builder.add(b"2", priority=7)
    batch = builder.build()
    rows = pa.ipc.read_record_batch(pa.py_buffer(batch.body), schema_of(batch.columns))
    assert matched("headers.region = 'eu' and key = 'k'", rows) == [0]
    assert matched("priority > 4 and headers.region is null", rows) == [1]


def test_an_empty_batch_has_no_matches() -> None:
    assert matched("headers.region = 'eu' or true", batch_of([], with_empty=True)) == []


def test_columns_say_what_has_to_be_read() -> None:
    wanted = parse_filter("headers.a = '1' or headers.b = '2' and priority > 1 and offset < 7")
    assert wanted.columns == COLUMN_BIT["headers"] | COLUMN_BIT["priority"]
    assert wanted.extras == {"offset"}
    assert parse_filter("true").columns == 0


def test_a_filter_survives_pickling_and_equals_itself() -> None:
    wanted = parse_filter("not key='a'")
    again = pickle.loads(pickle.dumps(wanted))
    assert again == wanted
    assert hash(again) == hash(wanted)
    assert again.mask(batch_of(MESSAGES)).tolist() == wanted.mask(batch_of(MESSAGES)).tolist()
    assert wanted != parse_filter("key = 'a'")
    with pytest.raises(AttributeError):
        wanted.text = "true"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("KEY='a'".replace("KEY", "key"), "key = 'a'"),
        ("key<>'it''s'", "key != 'it''s'"),
        ("headers['region'] = 'eu'", "headers.region = 'eu'"),
        ("headers['a b'] IS NOT NULL", "headers['a b'] is not null"),
        ("headers['a''b'] in('x','y')", "headers['a''b'] in ('x', 'y')"),
        ("headers['é'] is null", "headers['é'] is null"),
        ("not headers['x-test'] is null", "headers.x-test is not null"),
        ("not priority in (007, -1)", "priority not in (7, -1)"),
        ("not (key like 'a%' or priority >= 5)", "key not like 'a%' and priority < 5"),
        ("not (priority > 1 and priority < 5)", "priority <= 1 or priority >= 5"),
        ("((true)) AND (FALSE and true)", "true and false and true"),
        ("true and (false or true)", "true and (false or true)"),
        ("(true and false) or true", "true and false or true"),
        ("event_time < '2026-01-01'", "event_time < '2026-01-01T00:00:00Z'"),
        (
            "event_time < '2026-01-01T01:00:00.5+01:00'",
            "event_time < '2026-01-01T00:00:00.500000Z'",
        ),
        ("timestamp > '0001-01-01T00:00:00Z'", "timestamp > '0001-01-01T00:00:00Z'"),
    ],
)
def test_the_canonical_text(text: str, canonical: str) -> None:
    assert str(parse_filter(text)) == canonical
    assert str(parse_filter(canonical)) == canonical
    assert parse_filter(text) == parse_filter(canonical)


def test_the_reference_page_has_every_column() -> None:
    page = (REPOSITORY / "docs/reference/filters.md").read_text()
    assert [name for name in KINDS if f"`{name}" not in page] == []
