"""Arrow streams that say much with few bytes are refused before they cost anything."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from quiver.edge.http.arrow import stream_of
from quiver.edge.http.operation import ARROW
from tests.integration.cost import STALL_S_MAX, least_cost
from tests.integration.edge_node import edge_test
from tests.integration.http.http_node import HttpNode, http_node, problem

ROWS, SHARED_BYTES = 8000, 50_000
MEMORY_MAX = 128 << 20
TYPE = {"content-type": ARROW}


def shared_views(kind: pa.DataType) -> pa.Array:
    """Many values that are all the same bytes of the stream."""
    view = struct.pack("<i4sii", SHARED_BYTES, b"xxxx", 0, 0)
    buffers = [None, pa.py_buffer(view * ROWS), pa.py_buffer(b"x" * SHARED_BYTES)]
    return pa.Array.from_buffers(kind, ROWS, buffers)


def payloads() -> pa.Array:
    return pa.array([b"1"] * ROWS, pa.binary())


def shared_list_views() -> pa.Array:
    """Many lists that are all the same part of the values."""
    texts = pa.array(["x" * 10] * 5000)
    offsets, sizes = pa.array([0] * ROWS, pa.int32()), pa.array([5000] * ROWS, pa.int32())
    return pa.ListViewArray.from_arrays(offsets, sizes, texts)


def long_runs() -> pa.Array:
    ends, values = pa.array([ROWS], pa.int32()), pa.array(["x" * SHARED_BYTES])
    return pa.RunEndEncodedArray.from_arrays(ends, values)


def view_headers() -> pa.Array:
    offsets = pa.array(range(ROWS + 1), pa.int32())
    names = pa.array(["n"] * ROWS)
    return pa.MapArray.from_arrays(offsets, names, shared_views(pa.string_view()))


EXPANDING: dict[str, Callable[[], dict[str, pa.Array]]] = {
    "key of binary views": lambda: {"key": shared_views(pa.binary_view())},
    "key of string views": lambda: {"key": shared_views(pa.string_view())},
    "dedup_id of views": lambda: {"dedup_id": shared_views(pa.string_view())},
    "headers of views": lambda: {"headers": view_headers()},
    "headers of list views": lambda: {"headers": shared_list_views()},
    "key of runs": lambda: {"key": long_runs()},
    "unknown column of views": lambda: {"colour": shared_views(pa.string_view())},
    "key of structs": lambda: {"key": pa.array([{"a": 1}] * ROWS)},
    "key of no width": lambda: {"key": pa.array([b""] * ROWS, pa.binary(0))},
}


@pytest.mark.parametrize("name", EXPANDING)
def test_a_stream_whose_values_share_bytes_is_refused_at_once(name: str, tmp_path: Path) -> None:
    body = stream_of(pa.record_batch({"payload": payloads(), **EXPANDING[name]()}))
    assert len(body) < 1 << 20

    @edge_test
    async def check() -> None:
        async with http_node(tmp_path) as node:
            await node.queue()

            async def post() -> None:
                reply = await node.http.post("/queues/emails/messages", content=body, headers=TYPE)
                problem(reply, 422, "invalid_batch")

            cost = await least_cost(post)
            assert cost.stall_s < STALL_S_MAX, f"others waited {cost.stall_s:.3f} s"
            assert cost.bytes < MEMORY_MAX, f"{cost.bytes:,} bytes"

    check()


@edge_test
async def test_receipts_are_read_without_the_other_columns_of_a_stream(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        await node.http.post("/queues/emails/messages", json={"message": 1})
        [message] = await node.received()
        receipts = pa.array([message["receipt_handle"]])
        batch = pa.record_batch({"receipt": receipts, "note": pa.array(["x"], pa.string_view())})
        reply = await node.http.post(
            "/subscriptions/emails/ack", content=stream_of(batch), headers=TYPE
        )
        assert reply.json() == {"settled": 1}


@edge_test
async def test_plain_types_of_other_widths_are_published(tmp_path: Path) -> None:
    columns = {
        "payload": pa.array(["a", "b"], pa.large_string()),
        "key": pa.array([b"k" * 16, None], pa.binary(16)),
        "headers": pa.array([[("a", "b")], None], pa.map_(pa.large_string(), pa.large_string())),
        "priority": pa.array([1, 2], pa.int64()),
        "event_time": pa.array(["2026-01-01T00:00:00Z", None], pa.string()),
        "dedup_id": pa.nulls(2),
    }
    async with http_node(tmp_path) as node:
        await node.queue()
        await _publish(node, stream_of(pa.record_batch(columns)))
        found = {message["priority"]: message for message in await node.received(batch_size=2)}
        assert found[1]["key"] == "k" * 16
        assert found[1]["headers"] == {"a": "b"}
        assert found[1]["event_time"].startswith("2026-01-01")


@pytest.mark.parametrize("partitions", [1, 8])
def test_a_stream_of_many_rows_or_batches_does_not_hold_up_others(
    partitions: int, tmp_path: Path
) -> None:
    rows = pa.record_batch({"payload": [b""] * 1_200_000, "key": [b"k"] * 1_200_000})
    one = pa.record_batch({"payload": [b"1"]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, one.schema) as writer:
        for _ in range(20_000):
            writer.write_batch(one)

    @edge_test
    async def check() -> None:
        async with http_node(tmp_path) as node:
            await node.queue(partitions=partitions)
            for body in (stream_of(rows), sink.getvalue().to_pybytes()):
                cost = await least_cost(lambda body=body: _publish(node, body))  # type: ignore[misc]
                assert cost.stall_s < STALL_S_MAX, f"others waited {cost.stall_s:.3f} s"

    check()


@edge_test
async def test_many_repeats_do_not_hold_up_others(tmp_path: Path) -> None:
    ids = [f"id {number}" for number in range(50_000)]
    body = stream_of(pa.record_batch({"payload": [b""] * len(ids), "dedup_id": ids}))
    async with http_node(tmp_path) as node:
        await node.queue()
        await _publish(node, body)
        cost = await least_cost(lambda: _publish(node, body))
        assert cost.stall_s < STALL_S_MAX, f"others waited {cost.stall_s:.3f} s"


async def _publish(node: HttpNode, body: bytes) -> None:
    reply = await node.http.post("/queues/emails/messages", content=body, headers=TYPE)
    assert reply.status_code == 201, reply.text
