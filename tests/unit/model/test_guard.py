"""The guard: nothing passes it that could crash a reader, cost too much memory, or break a limit."""

from __future__ import annotations

import struct
import subprocess
import sys
import time
from typing import Any

import pyarrow as pa
import pytest

from quiver.errors import InvalidBatch, MessageTooLarge
from quiver.model.batch import UnstoredBatch
from quiver.model.builder import BatchBuilder, encode_record_batch
from quiver.model.envelope import BATCH_BYTES_MAX, ProducerStamp, open_batch, seal_batch
from quiver.model.guard import (
    DEDUP_IDS_MAX,
    TIME_MAX,
    TIME_MIN,
    check_batch,
    open_message,
    require_few_ids,
)
from quiver.model.ids import ProducerId, Sequence
from quiver.model.schema import COLUMN_BIT, COLUMNS, PAYLOAD
from quiver.model.topic import Compression
from tests.paths import REPOSITORY
from tests.unit.model.hostile_bodies import full_batch, outcome, valid_batches

_ROOT = REPOSITORY
_MIB = 1 << 20
_PAST_V5 = {Compression.LZ4: "lz4", Compression.ZSTD: "zstd"}


def _batch(**columns: Any) -> UnstoredBatch:
    return encode_record_batch(pa.record_batch(columns))


class Forged:
    """The body of a valid batch, to be changed at the places that mean something."""

    def __init__(self, batch: UnstoredBatch) -> None:
        self._batch = batch
        self.body = bytearray(batch.body)
        root = 8 + self._u32(8)
        self.version = self._place(root, 0)
        header = self._place(root, 2)
        self._table = header + self._u32(header)
        vector = self._place(self._table, 2)
        self._buffers = vector + self._u32(vector) + 4
        self.body_at = 8 + struct.unpack_from("<i", self.body, 4)[0]

    def _u32(self, at: int) -> int:
        return struct.unpack_from("<I", self.body, at)[0]  # type: ignore[no-any-return]

    def _slot(self, table: int, number: int) -> int:
        return table - struct.unpack_from("<i", self.body, table)[0] + 4 + 2 * number

    def _place(self, table: int, number: int) -> int:
        return table + struct.unpack_from("<H", self.body, self._slot(table, number))[0]

    def set_version(self, version: int) -> None:
        struct.pack_into("<h", self.body, self.version, version)

    def drop_compression(self) -> None:
        """Leave out which compression it is, where version 5 of the metadata says it."""
        struct.pack_into("<H", self.body, self._slot(self._table, 3), 0)

    def set_buffer(self, number: int, position: int, length: int) -> None:
        struct.pack_into("<qq", self.body, self._buffers + 16 * number, position, length)

    def buffer(self, number: int) -> tuple[int, int]:
        return struct.unpack_from("<qq", self.body, self._buffers + 16 * number)

    def declare(self, number: int, size: int) -> None:
        """Set the size that a compressed buffer says it has once it is unpacked."""
        struct.pack_into("<q", self.body, self.body_at + self.buffer(number)[0], size)

    def sealed(self) -> UnstoredBatch:
        return seal_batch(bytes(self.body), self._batch.count, self._batch.columns)


def _ipc(batch: pa.RecordBatch, codec: str, metadata: dict[str, str]) -> bytes:
    """The batch's IPC message, with metadata of its own."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch, custom_metadata=pa.KeyValueMetadata(metadata))
    stream = bytes(sink.getvalue())
    return stream[8 + int.from_bytes(stream[4:8], "little") : -8]


# ---------------------------------------------------------------------- what passes


@pytest.mark.parametrize("batch", valid_batches())
def test_a_valid_batch_passes_with_its_size_without_compression(batch: UnstoredBatch) -> None:
    facts = check_batch(batch, _MIB)
    assert facts.rows.num_rows == batch.count
    assert facts.bytes >= facts.rows.nbytes


def test_a_batch_is_opened_without_being_unpacked() -> None:
    zeros = encode_record_batch(pa.record_batch({"payload": [bytes(60 * _MIB)]}), Compression.ZSTD)
    before = pa.total_allocated_bytes()
    opened = open_message(zeros)
    assert opened.bytes >= 60 * _MIB
    assert pa.total_allocated_bytes() - before < _MIB


@pytest.mark.parametrize("with_key", [False, True])
def test_the_bytes_of_plain_payloads_and_keys_are_no_work(with_key: bool) -> None:
    columns = {"payload": [bytes(_MIB)]} | ({"key": [bytes(_MIB)]} if with_key else {})
    plain = open_message(_batch(**columns))
    packed = open_message(encode_record_batch(pa.record_batch(columns), Compression.LZ4))
    assert plain.bytes > _MIB
    assert plain.work < 1000
    assert packed.work == packed.bytes > _MIB


def test_metadata_that_was_seen_before_vouches_for_no_other_body() -> None:
    """The sizes of a batch are remembered by its metadata: every value is looked at all the same."""
    intact = _batch(payload=[b"x" * 100])
    check_batch(intact, _MIB)
    cut = seal_batch(bytes(intact.body)[:-64], 1, PAYLOAD)
    with pytest.raises(InvalidBatch):
        check_batch(cut, _MIB)
    forged = Forged(intact)
    at = bytes(forged.body).index(b"x" * 100) - 64  # where the payload's offsets are
    struct.pack_into("<ii", forged.body, at, 0, 1 << 30)
    with pytest.raises(InvalidBatch):
        check_batch(seal_batch(bytes(forged.body), 1, PAYLOAD), _MIB)


def test_batches_of_the_same_shape_have_the_sizes_of_their_own_columns() -> None:
    plain = _batch(payload=[b"x" * 100])
    assert open_message(plain) == open_message(plain)
    with pytest.raises(InvalidBatch, match="buffers"):
        open_message(seal_batch(plain.body, 1, PAYLOAD | COLUMN_BIT["key"]))


def test_headers_and_many_rows_are_work() -> None:
    headers = pa.array([{"name": "v" * _MIB}], pa.map_(pa.string(), pa.string()))
    assert open_message(_batch(payload=[b"p"], headers=headers)).work > _MIB
    assert open_message(_batch(payload=pa.array([b""] * 100_000, pa.binary()))).work > 400_000


# ---------------------------------------------------------------------- what is not Arrow


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0",
        b"\0\0\0\0",
        b"\xff\xff\xff\xff\0\0\0\0",
        b"\xff" * 8,
        b"\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\xff\xff\xff\xff\x10\0\0\0" + bytes(16),
        b"garbage" * 100,
        bytes(pa.schema([("payload", pa.binary())]).serialize()),
        bytes(valid_batches()[0].body)[:100],
        bytes(valid_batches()[0].body)[:-8],
    ],
)
def test_what_is_not_a_record_batch_is_invalid(body: bytes) -> None:
    with pytest.raises(InvalidBatch):
        check_batch(seal_batch(body, 1, PAYLOAD), _MIB)


def test_a_tensor_or_a_dictionary_is_no_batch_of_messages() -> None:
    sink = pa.BufferOutputStream()
    pa.ipc.write_tensor(pa.Tensor.from_numpy(__import__("numpy").zeros(4)), sink)
    with pytest.raises(InvalidBatch):
        check_batch(seal_batch(bytes(sink.getvalue()), 1, PAYLOAD), _MIB)


@pytest.mark.parametrize("names", [[], ["key"], ["headers"], ["sequence"], ["key", "dedup_id"]])
def test_columns_other_than_the_mask_says_are_invalid(names: list[str]) -> None:
    batch = _batch(payload=[b"p"], key=[b"k"], priority=pa.array([1], pa.int8()))
    columns = PAYLOAD | sum(COLUMN_BIT[name] for name in names)
    with pytest.raises(InvalidBatch, match="buffers"):
        check_batch(seal_batch(batch.body, batch.count, columns), _MIB)


@pytest.mark.parametrize("count", [1, 3, 1000])
def test_a_count_that_is_not_the_number_of_rows_is_invalid(count: int) -> None:
    body = _batch(payload=[b"a", b"b"]).body
    with pytest.raises(InvalidBatch, match="it has 2"):
        check_batch(seal_batch(body, count, PAYLOAD), _MIB)


# ---------------------------------------------------------------------- hostile buffers


@pytest.mark.parametrize(
    ("position", "length"),
    [
        (-8, 8),
        (0, -1),
        (1 << 40, 8),
        (0, 1 << 40),
        ((1 << 63) - 8, 16),
        (8, (1 << 63) - 1),
        (-(1 << 63), 1 << 62),
    ],
)
@pytest.mark.parametrize("compression", Compression)
def test_a_buffer_outside_the_body_is_invalid(
    compression: Compression, position: int, length: int
) -> None:
    forged = Forged(encode_record_batch(pa.record_batch({"payload": [b"x" * 500]}), compression))
    forged.set_buffer(2, position, length)
    with pytest.raises(InvalidBatch):
        check_batch(forged.sealed(), _MIB)


@pytest.mark.parametrize(
    "offsets", [(0, 1 << 30), (-1, 4), (4, 2), (0, -(1 << 31)), ((1 << 31) - 1, 0)]
)
def test_offsets_out_of_range_are_invalid(offsets: tuple[int, int]) -> None:
    forged = Forged(_batch(payload=[b"abcd"]))
    position, _ = forged.buffer(1)
    struct.pack_into("<ii", forged.body, forged.body_at + position, *offsets)
    with pytest.raises(InvalidBatch):
        check_batch(forged.sealed(), _MIB)


def test_text_that_is_not_utf8_is_invalid() -> None:
    batch = _batch(payload=[b"p"], dedup_id=["abcd"])
    body = bytes(batch.body).replace(b"abcd", b"ab\xff\xfe")
    with pytest.raises(InvalidBatch):
        check_batch(seal_batch(body, 1, batch.columns), _MIB)


def test_buffers_that_overlap_do_not_hide_how_large_a_message_is() -> None:
    forged = Forged(_batch(key=[b"k" * 600], payload=[b""]))
    position, _ = forged.buffer(4)
    struct.pack_into("<ii", forged.body, forged.body_at + position, 0, 600)
    forged.set_buffer(5, *forged.buffer(2))
    assert len(forged.body) < 1000
    with pytest.raises(MessageTooLarge) as refused:
        check_batch(forged.sealed(), 1000)
    assert refused.value.details["size"] == 1200


# ---------------------------------------------------------------------- bombs


@pytest.mark.parametrize("compression", [Compression.LZ4, Compression.ZSTD])
def test_a_batch_that_unpacks_to_too_much_is_refused_before_it_is(
    compression: Compression,
) -> None:
    bomb = encode_record_batch(pa.record_batch({"payload": [bytes(BATCH_BYTES_MAX)]}), compression)
    assert bomb.size() < BATCH_BYTES_MAX / 100
    before = pa.total_allocated_bytes()
    with pytest.raises(InvalidBatch, match="decompressed batch has more"):
        check_batch(bomb, 32 * _MIB)
    assert pa.total_allocated_bytes() - before < _MIB


@pytest.mark.parametrize("compression", [Compression.LZ4, Compression.ZSTD])
@pytest.mark.parametrize("declared", [8, 1000, -1, -2, -(1 << 63), (1 << 63) - 1])
def test_a_buffer_that_lies_about_its_unpacked_size_is_refused_cheaply(
    compression: Compression, declared: int
) -> None:
    """What the compressed frame says of itself counts for nothing."""
    forged = Forged(
        encode_record_batch(pa.record_batch({"payload": [bytes(32 * _MIB)]}), compression)
    )
    forged.declare(2, declared)
    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()
    with pytest.raises(InvalidBatch):
        check_batch(forged.sealed(), 32 * _MIB)
    assert pool.bytes_allocated() - before < _MIB


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_compression_named_as_before_version_5_is_refused(codec: str) -> None:
    """Arrow still reads it; the sizes that such a batch declares would not be looked at."""
    zeros = pa.record_batch({"payload": [bytes(2 * BATCH_BYTES_MAX)]})
    body = _ipc(zeros, codec, {"ARROW:experimental_compression": codec})
    forged = Forged(seal_batch(body, 1, PAYLOAD))
    forged.set_version(3)
    forged.drop_compression()
    before = pa.total_allocated_bytes()
    with pytest.raises(InvalidBatch, match="version 5"):
        check_batch(forged.sealed(), _MIB)
    assert pa.total_allocated_bytes() - before < _MIB


def test_many_rows_with_headers_are_checked_in_a_moment() -> None:
    rows = 200_000
    headers = pa.MapArray.from_arrays(
        pa.array(range(rows + 1), pa.int32()), pa.array(["h"] * rows), pa.array(["v"] * rows)
    )
    batch = _batch(payload=pa.array([b""] * rows, pa.binary()), headers=headers)
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        check_batch(batch, 1000)
        best = min(best, time.perf_counter() - began)
    assert best < 0.1


# ---------------------------------------------------------------------- values


def test_a_null_payload_is_invalid() -> None:
    forged = pa.record_batch({"payload": pa.array([b"a", None])})
    body = bytes(forged.serialize())
    with pytest.raises(InvalidBatch, match="not null"):
        check_batch(seal_batch(body, 2, PAYLOAD), _MIB)


@pytest.mark.parametrize("priority", [-1, 10, 127, -128])
def test_a_priority_outside_its_bounds_is_invalid(priority: int) -> None:
    with pytest.raises(InvalidBatch, match="priority"):
        check_batch(_batch(payload=[b"p"], priority=pa.array([priority], pa.int8())), _MIB)


@pytest.mark.parametrize("name", ["event_time", "deliver_at", "expires_at"])
@pytest.mark.parametrize("moment", [TIME_MIN - 1, TIME_MAX + 1, (1 << 63) - 1, -(1 << 63)])
def test_a_time_that_no_calendar_has_is_invalid(name: str, moment: int) -> None:
    times = pa.array([None, moment], pa.int64()).cast(pa.timestamp("us", "UTC"))
    with pytest.raises(InvalidBatch, match=name):
        check_batch(_batch(**{"payload": [b"p", b"q"], name: times}), _MIB)


@pytest.mark.parametrize("moment", [TIME_MIN, -1, 0, TIME_MAX])
def test_every_time_that_passes_can_be_read(moment: int) -> None:
    times = pa.array([moment], pa.int64()).cast(pa.timestamp("us", "UTC"))
    rows = check_batch(_batch(payload=[b"p"], event_time=times), _MIB).rows
    assert rows.to_pylist()[0]["event_time"] is not None


@pytest.mark.parametrize(
    ("name", "most"), [("dedup_id", 256), ("origin_topic", 200), ("last_error", 4000)]
)
def test_text_beside_the_message_has_a_bound_of_its_own(name: str, most: int) -> None:
    assert check_batch(_batch(**{"payload": [b"p"], name: ["d" * most]}), _MIB)
    with pytest.raises(InvalidBatch, match=name):
        check_batch(_batch(**{"payload": [b"p"], name: ["d" * (most + 1)]}), _MIB)


@pytest.mark.parametrize("field", COLUMNS, ids=lambda field: field.name)
def test_nothing_in_a_message_is_of_any_length(field: pa.Field) -> None:
    """It counts as the message's size, or has a bound of its own, or a fixed size."""
    values = {
        pa.binary(): [b"x" * 8192],
        pa.string(): ["x" * 8192],
        pa.map_(pa.string(), pa.string()): [{"n": "x" * 8192}],
    }
    if field.type not in values:
        assert field.type.bit_width <= 64
        return
    columns = {"payload": [b"p"], field.name: pa.array(values[field.type], field.type)}
    with pytest.raises((InvalidBatch, MessageTooLarge)):
        check_batch(_batch(**columns), 8000)


def test_a_null_header_name_is_invalid() -> None:
    keys = pa.array(["a", None])
    struct_type = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.string())])
    entries = pa.StructArray.from_arrays([keys, pa.array(["x", "y"])], fields=list(struct_type))
    listed = pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), entries)
    body = bytes(
        pa.RecordBatch.from_arrays([pa.array([b"p"]), listed], ["payload", "headers"]).serialize()
    )
    with pytest.raises(InvalidBatch):
        check_batch(seal_batch(body, 1, PAYLOAD | COLUMN_BIT["headers"]), 1)


@pytest.mark.parametrize("stamp", [{"producer_id": -1}, {"producer_id": 1, "sequence": -1}])
def test_a_producer_with_negative_numbers_is_invalid(stamp: dict[str, int]) -> None:
    builder = BatchBuilder()
    builder.add(b"x")
    batch = builder.build(
        stamp=ProducerStamp(
            ProducerId(stamp["producer_id"]), sequence=Sequence(stamp.get("sequence", 0))
        )
    )
    with pytest.raises(InvalidBatch, match="must not be negative"):
        check_batch(batch, _MIB)


def test_flags_that_this_version_does_not_know_are_refused() -> None:
    batch = _batch(payload=[b"p"])
    head = bytearray(batch.head)
    struct.pack_into("<I", head, 16, 1)
    crc = __import__("crc32c").crc32c
    struct.pack_into("<I", head, 0, crc(batch.body, crc(bytes(head[4:]))))
    with pytest.raises(InvalidBatch, match="flags"):
        open_batch(bytes(head) + bytes(batch.body))


# ---------------------------------------------------------------------- the topic's limit


@pytest.mark.parametrize(
    ("columns", "size"),
    [
        ({"payload": [b"", b"x" * 300]}, 300),
        ({"payload": [b"x" * 200, b""], "key": [b"k" * 100, None]}, 300),
        (
            {
                "payload": [b"", b"x" * 100, b""],
                "headers": pa.array(
                    [None, {"name": "v" * 96, "name2": "v" * 95}, {}],
                    pa.map_(pa.string(), pa.string()),
                ),
            },
            300,
        ),
    ],
)
def test_the_limit_is_for_payload_key_and_headers_of_one_message(
    columns: dict[str, Any], size: int
) -> None:
    batch = _batch(**columns)
    assert check_batch(batch, size)
    with pytest.raises(MessageTooLarge) as refused:
        check_batch(batch, size - 1)
    assert refused.value.details == {"size": size, "limit": size - 1}


def test_many_small_messages_may_be_more_than_the_limit_together() -> None:
    assert check_batch(encode_record_batch(full_batch(1000)), 100)


# ---------------------------------------------------------------------- chance


@pytest.mark.process
@pytest.mark.parametrize("seed", [1, 2])
def test_mutated_bodies_are_refused_or_can_be_read_to_the_last_value(seed: int) -> None:
    """In a child: a reader that crashes takes its process with it."""
    child = subprocess.run(
        [sys.executable, "-m", "tests.unit.model.hostile_bodies", str(seed), "2000"],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    assert "invalid" in child.stdout
    assert "passed" in child.stdout


def test_unchanged_bodies_would_pass_that_test() -> None:
    assert {outcome(batch) for batch in valid_batches()} == {"passed"}


def test_a_batch_has_a_bounded_number_of_dedup_ids() -> None:
    """Each of them is looked up while others wait."""

    def batch(rows: int, **columns: pa.Array) -> UnstoredBatch:
        payload = pa.array([b""] * rows, pa.binary())
        return encode_record_batch(pa.record_batch({"payload": payload, **columns}))

    many = DEDUP_IDS_MAX + 1
    require_few_ids(batch(many))
    require_few_ids(batch(many - 1, dedup_id=pa.array(["x"] * (many - 1))))
    with pytest.raises(InvalidBatch, match="at most 50,000 messages, not 50,001"):
        require_few_ids(batch(many, dedup_id=pa.array(["x"] * many)))
