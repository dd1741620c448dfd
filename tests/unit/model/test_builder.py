"""Messages into batches: every column comes back, and what is empty is left out."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiver.errors import InvalidBatch, InvalidRequest
from quiver.model.batch import UnstoredBatch
from quiver.model.builder import BatchBuilder, encode_payload, encode_record_batch
from quiver.model.envelope import BATCH_COUNT_MAX, ProducerStamp, open_batch
from quiver.model.guard import check_batch
from quiver.model.ids import ProducerEpoch, ProducerId, Sequence
from quiver.model.schema import ALL_COLUMNS, COLUMN_BIT, COLUMNS, PAYLOAD, schema_of
from quiver.model.topic import Compression
from tests.unit.model.hostile_bodies import full_batch

_TEXT = st.text(max_size=10)
_TIMES = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))
messages = st.fixed_dictionaries(
    {"payload": st.binary(max_size=50)},
    optional={
        "key": st.none() | st.binary(max_size=20),
        "headers": st.none() | st.dictionaries(_TEXT, _TEXT, max_size=3),
        "event_time": st.none() | _TIMES,
        "priority": st.none() | st.integers(0, 9),
        "deliver_at": st.none() | _TIMES,
        "expires_at": st.none() | _TIMES,
        "dedup_id": st.none() | _TEXT,
        "sequence": st.none() | st.integers(0, 1 << 62),
    },
)


def _sent(batch: UnstoredBatch) -> UnstoredBatch:
    """The batch as the broker opens it, out of its bytes alone."""
    return open_batch(batch.head + bytes(batch.body))


def _rows(batch: UnstoredBatch) -> list[dict[str, Any]]:
    return check_batch(_sent(batch), 1 << 20).rows.to_pylist()


@settings(max_examples=60)
@given(st.lists(messages, min_size=1, max_size=10), st.sampled_from(Compression))
def test_every_column_comes_back_as_it_went(
    given_messages: list[dict[str, Any]], compression: Compression
) -> None:
    builder = BatchBuilder()
    for place, message in enumerate(given_messages):
        assert builder.add(**message) == place
    for row, message in zip(_rows(builder.build(compression)), given_messages, strict=True):
        for field in COLUMNS:
            expected = message.get(field.name)
            if field.name == "headers" and expected is not None:
                expected = list(expected.items())
            assert row.get(field.name) == expected


@pytest.mark.parametrize("count", [1, 2, 16, 17, 100])
def test_a_batch_of_payloads_has_the_bytes_that_arrow_would_make(count: int) -> None:
    payloads = [bytes(number % 7) + b"%d" % number for number in range(count)]
    builder = BatchBuilder()
    builder.payloads += payloads
    rows = pa.record_batch([pa.array(payloads, pa.binary())], schema=schema_of(PAYLOAD))
    assert bytes(builder.build().body) == rows.serialize().to_pybytes()


@pytest.mark.parametrize("payload", [None, "text", 7])
def test_a_payload_that_is_not_bytes_is_a_bad_batch(payload: Any) -> None:
    builder = BatchBuilder()
    builder.payloads.append(payload)
    with pytest.raises(InvalidBatch, match="payload"):
        builder.build()


def test_a_column_without_a_value_is_left_out() -> None:
    builder = BatchBuilder()
    builder.add(b"one", None, priority=None)
    builder.add(b"two", b"key", priority=None)
    assert builder.build().columns == PAYLOAD | COLUMN_BIT["key"]


def test_the_stamp_of_the_producer_is_in_the_batch() -> None:
    stamp = ProducerStamp(ProducerId(7), ProducerEpoch(2), Sequence(40))
    builder = BatchBuilder()
    builder.add(b"x")
    sent = _sent(builder.build(stamp=stamp))
    assert (sent.producer_id, sent.producer_epoch, sent.sequence) == (7, 2, 40)


def test_a_builder_knows_about_how_large_its_batch_will_be() -> None:
    builder = BatchBuilder()
    for _ in range(1000):
        builder.add(b"p" * 100, b"k" * 10, headers={"name": "value"}, dedup_id="d" * 20)
    size = builder.build().size()
    assert 0.7 * size < builder.size < 1.5 * size


def test_a_batch_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidBatch):
        BatchBuilder().build()


@pytest.mark.parametrize("compression", Compression)
def test_an_arrow_batch_with_every_column_comes_back_as_it_went(compression: Compression) -> None:
    batch = full_batch(100)
    sent = _sent(encode_record_batch(batch, compression))
    assert sent.columns == ALL_COLUMNS
    assert check_batch(sent, 1 << 20).rows.equals(batch)


@pytest.mark.parametrize("compression", Compression)
def test_a_slice_of_an_arrow_batch_carries_its_own_rows_only(compression: Compression) -> None:
    batch = full_batch(1000)
    encoded = encode_record_batch(batch.slice(100, 7), compression)
    assert check_batch(_sent(encoded), 1 << 20).rows.to_pylist() == batch.slice(100, 7).to_pylist()
    assert encoded.size() < 4096


def test_an_arrow_batch_may_have_its_columns_in_any_order_and_similar_types() -> None:
    batch = pa.record_batch(
        {
            "priority": pa.array([3, None], pa.int64()),
            "payload": pa.array(["a", "b"], pa.large_string()),
            "key": pa.array([b"k", b"k"]).dictionary_encode(),
        }
    )
    encoded = encode_record_batch(batch)
    assert encoded.columns == COLUMN_BIT["key"] | PAYLOAD | COLUMN_BIT["priority"]
    assert _rows(encoded) == [
        {"key": b"k", "payload": b"a", "priority": 3},
        {"key": b"k", "payload": b"b", "priority": None},
    ]


def test_compression_makes_a_repetitive_batch_small() -> None:
    batch = pa.record_batch({"payload": [b"again and again" * 100] * 100})
    plain = encode_record_batch(batch).size()
    for compression in (Compression.LZ4, Compression.ZSTD):
        assert encode_record_batch(batch, compression).size() < plain / 10


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"key": [b"k"]}, "no payload"),
        ({"payload": [b"p"], "colour": ["red"]}, "colour"),
        ({"payload": pa.array([b"p", None])}, "not null"),
        ({"payload": pa.array([], pa.binary())}, "1 to"),
        ({"payload": [b"p"], "priority": ["high"]}, "priority"),
        ({"payload": [b"p"], "priority": [1000]}, "priority"),
        ({"payload": [b"p"], "headers": [7]}, "headers"),
        ({"payload": [[b"p"]]}, "payload"),
    ],
)
def test_an_arrow_batch_that_is_not_messages_is_refused(
    columns: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidBatch, match=reason):
        encode_record_batch(pa.record_batch(columns))


def test_an_arrow_batch_with_a_column_twice_is_refused() -> None:
    twice = pa.RecordBatch.from_arrays([pa.array([b"a"]), pa.array([b"b"])], ["payload", "payload"])
    with pytest.raises(InvalidBatch, match="payload"):
        encode_record_batch(twice)


def test_an_arrow_batch_of_too_many_rows_is_refused() -> None:
    payloads = pa.array([b""], pa.binary()).take(pa.array([0] * (BATCH_COUNT_MAX + 1)))
    with pytest.raises(InvalidBatch, match="1,048,576"):
        encode_record_batch(pa.RecordBatch.from_arrays([payloads], ["payload"]))


@pytest.mark.parametrize(
    "rest",
    [
        {"headers": {"name": 7}},
        {"headers": {7: "value"}},
        {"headers": "text"},
        {"priority": "high"},
        {"priority": 1000},
        {"event_time": "yesterday"},
        {"dedup_id": 7},
        {"sequence": 1 << 63},
        {"colour": "red"},
    ],
)
def test_a_value_of_the_wrong_type_is_a_bad_batch(rest: dict[str, Any]) -> None:
    with pytest.raises(InvalidBatch, match=next(iter(rest))):
        _built(rest)


def _built(rest: dict[str, Any]) -> UnstoredBatch:
    builder = BatchBuilder()
    builder.add(b"x", **rest)
    return builder.build()


def test_a_message_that_is_refused_leaves_its_neighbours_as_they_were() -> None:
    builder = BatchBuilder()
    builder.add(b"one", b"k1", dedup_id="d1")
    for refused in ({"headers": {"name": 7}}, {"colour": "red"}):
        with pytest.raises(InvalidBatch):
            builder.add(b"refused", b"k", dedup_id="d", **refused)
    builder.add(b"two", b"k2", dedup_id="d2")
    assert _rows(builder.build()) == [
        {"key": b"k1", "payload": b"one", "dedup_id": "d1"},
        {"key": b"k2", "payload": b"two", "dedup_id": "d2"},
    ]


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b"raw", b"raw"),
        (bytearray(b"raw"), b"raw"),
        (memoryview(b"raw"), b"raw"),
        ("grüß", "grüß".encode()),
        ({"id": 1, "tags": ["a"]}, b'{"id":1,"tags":["a"]}'),
        ([1, None, True], b"[1,null,true]"),
        (None, b"null"),
        (1.5, b"1.5"),
    ],
)
def test_a_payload_is_bytes_text_or_json(payload: object, expected: bytes) -> None:
    assert encode_payload(payload) == expected


def test_a_payload_that_json_cannot_say_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    for payload in (object(), {1, object()}, deep, "\ud800"):
        with pytest.raises(InvalidRequest):
            encode_payload(payload)


def test_the_schema_of_a_mask_has_its_columns_in_their_order() -> None:
    for columns in (PAYLOAD, ALL_COLUMNS, PAYLOAD | COLUMN_BIT["sequence"] | COLUMN_BIT["key"]):
        names = [field.name for field in COLUMNS if columns & COLUMN_BIT[field.name]]
        assert schema_of(columns).names == names
