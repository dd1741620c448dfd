"""A partition that cannot be read is reported, not shown as empty, and without the server's paths."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.integration.edge_node import edge_test
from tests.integration.http.http_node import http_node, problem


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_partition_that_cannot_be_opened_is_not_shown_as_empty(
    partitions: int, tmp_path: Path
) -> None:
    @edge_test
    async def check() -> None:
        async with http_node(tmp_path) as node:
            await node.http.put("/topics/orders", json={"partitions": partitions})
            for partition in range(partitions):
                await node.http.post(
                    "/topics/orders/messages", json={"message": 1, "partition": partition}
                )
        [folder] = (tmp_path / "data" / "topics").glob("*/0")
        shutil.rmtree(folder)
        folder.write_text("no folder")
        async with http_node(tmp_path) as node:
            reply = await node.http.get("/topics/orders/messages")
            if partitions == 1:
                told = problem(reply, 503, "partition_unavailable")
                assert "partition 0" in told["detail"]
            else:
                found = reply.json()
                assert (len(found["messages"]), found["complete"]) == (1, False)
            assert str(tmp_path) not in reply.text

    check()
