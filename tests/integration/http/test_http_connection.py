"""The HTTP connection itself: what it leaves behind."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

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
