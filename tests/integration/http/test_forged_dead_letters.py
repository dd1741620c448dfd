"""A client cannot make dead letters, whichever way it publishes: Quiver alone says where they come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from quiver.edge.http.arrow import stream_of
from quiver.model.schema import COLUMNS, DEAD_LETTER_COLUMNS
from tests.integration.edge_node import edge_test
from tests.integration.http.http_node import http_node, problem

ARROW = {"Content-Type": "application/vnd.apache.arrow.stream"}


def forged(name: str) -> pa.RecordBatch:
    kind = next(field.type for field in COLUMNS if field.name == name)
    value = pa.array(["payments" if pa.types.is_string(kind) else 1]).cast(kind)
    return pa.RecordBatch.from_pydict({"payload": pa.array([b"forged"]), name: value})


@edge_test
async def test_an_arrow_stream_with_a_column_of_dead_letters_is_refused(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node:
        await node.queue("job")
        for name in DEAD_LETTER_COLUMNS:
            for path in ("/queues/job.dlq/messages", "/topics/job.dlq/messages"):
                body = stream_of(forged(name))
                reply = await node.http.post(path, content=body, headers=ARROW)
                document = problem(reply, 422, "invalid_batch")
                assert f"column {name} is set by Quiver" in document["detail"]
        assert await node.received("job.dlq") == []


@pytest.mark.parametrize("name", DEAD_LETTER_COLUMNS)
@edge_test
async def test_a_json_message_with_a_field_of_dead_letters_is_refused(
    tmp_path: Path, name: str
) -> None:
    async with http_node(tmp_path) as node:
        await node.queue("job")
        one: dict[str, Any] = {"message": "forged", name: "payments"}
        for path in ("/queues/job.dlq/messages", "/topics/job.dlq/messages"):
            for body in (one, [one, one]):
                reply = await node.http.post(path, json=body)
                assert name in problem(reply, 422, "invalid_request")["detail"]
        assert await node.received("job.dlq") == []
