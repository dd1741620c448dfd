"""The HTTP connection itself: what it leaves behind."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest

from quiver.edge.http.connection import PIECE_BYTES, PIPELINE_MAX, GuardedConnection
from tests.integration.edge_node import edge_test
from tests.integration.http.http_node import http_node


@edge_test
async def test_an_answered_request_leaves_nothing_for_the_garbage_collector(tmp_path: Path) -> None:
    """Objects that refer to each other are freed by the collector, which stops the node meanwhile."""
    async with http_node(tmp_path) as node:
        await node.queue()
        reader, writer = await asyncio.open_connection(node.address.host, node.address.port)
        body = b'{"message": 1}'
        head = b"POST /queues/emails/messages HTTP/1.1\r\nHost: n\r\nContent-Length: %d\r\n\r\n"

        async def post(times: int) -> None:
            for _ in range(times):
                writer.write(head % len(body) + body)
                answered = await reader.readuntil(b"\r\n\r\n")
                length = int(answered.lower().partition(b"content-length: ")[2].split()[0])
                await reader.readexactly(length)

        await post(20)
        gc.collect()
        gc.disable()
        try:
            await post(200)
            assert gc.collect() < 200
        finally:
            gc.enable()
            writer.close()
            await writer.wait_closed()


async def statuses(reader: asyncio.StreamReader, most: int) -> list[int]:
    """The statuses of the answers until there are so many, or the connection ends."""
    found: list[int] = []
    while len(found) < most:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            break
        found.append(int(head.split()[1]))
        length = int(head.lower().partition(b"content-length: ")[2].split()[0])
        await reader.readexactly(length)
    return found


@pytest.mark.parametrize("count", [200, 3000])
@edge_test
async def test_each_of_many_pipelined_requests_is_answered(tmp_path: Path, count: int) -> None:
    async with http_node(tmp_path) as node:
        await node.queue()
        reader, writer = await asyncio.open_connection(node.address.host, node.address.port)
        body = b'{"message": 1}'
        publish = b"POST /queues/emails/messages HTTP/1.1\r\nHost: n\r\nContent-Length: %d\r\n\r\n"
        look = b"GET /queues/emails HTTP/1.1\r\nHost: n\r\n\r\n"
        writer.write((publish % len(body) + body + look) * (count // 2))
        async with asyncio.timeout(50):
            assert await statuses(reader, count) == [201, 200] * (count // 2)
        assert (
            await node.depth("emails", "ready") + await node.depth("emails", "unseen") == count // 2
        )
        writer.close()
        await writer.wait_closed()


@edge_test
async def test_few_pipelined_requests_are_parsed_before_those_in_front_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: list[int] = []
    parsed = GuardedConnection.on_headers_complete

    def watched(connection: GuardedConnection) -> None:
        parsed(connection)
        waiting.append(len(connection.pipeline))

    monkeypatch.setattr(GuardedConnection, "on_headers_complete", watched)
    async with http_node(tmp_path) as node:
        reader, writer = await asyncio.open_connection(node.address.host, node.address.port)
        body = b"x" * 100_000
        upload = (
            b"POST /healthz HTTP/1.1\r\nHost: n\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        writer.write(upload + b"GET /healthz HTTP/1.1\r\nHost: n\r\n\r\n" * 20_000)
        async with asyncio.timeout(50):
            await statuses(reader, 500)
        writer.close()
        assert max(waiting) < 2 * PIPELINE_MAX + PIECE_BYTES // len(b"GET / HTTP/1.1\r\n\r\n")
