"""The HTTP connection itself: how long it may be held, by whom, and what it leaves behind."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from quiver.client import AsyncClient
from quiver.config import Security
from quiver.edge.http.connection import PIECE_BYTES, PIPELINE_MAX, GuardedConnection
from tests.integration.edge_node import edge_test
from tests.integration.http.http_node import HttpNode, http_node

ASKED = Security(authentication=True)
POST = b"POST /queues/emails/messages HTTP/1.1\r\nHost: localhost\r\n"
HELD = {
    "answered before its body": (
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\nx",
        b" 200 ",
    ),
    "refused before its body": (
        b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\n",
        b" 404 ",
    ),
    "no body": (POST + b"Content-Length: 9\r\n\r\n", b" 408 "),
    "half a body": (POST + b"Content-Length: 9\r\n\r\n{", b" 408 "),
    "no chunk": (POST + b"Transfer-Encoding: chunked\r\n\r\n", b" 408 "),
    "half the chunks": (POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", b" 408 "),
    "socket with a body": (
        b"GET /queues/emails/stream HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\n"
        b"Upgrade: websocket\r\nContent-Length: 9\r\n\r\n",
        b" 400 ",
    ),
}


@asynccontextmanager
async def connected(
    node: HttpNode,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(node.address.host, node.address.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("name", HELD)
@pytest.mark.parametrize("trickles", [False, True])
def test_nobody_holds_a_connection_with_a_body_that_never_ends(
    name: str, trickles: bool, tmp_path: Path
) -> None:
    sent, status = HELD[name]

    @edge_test
    async def check() -> None:
        async with http_node(tmp_path, frame_timeout_s=0.5) as node, connected(node) as (r, w):
            await node.queue()
            w.write(sent)

            async def trickle() -> None:
                while True:
                    await asyncio.sleep(0.1)
                    w.write(b"1" if b"chunked" not in sent else b"")

            task = asyncio.create_task(trickle()) if trickles else None
            try:
                async with asyncio.timeout(20):
                    answer = await r.read()
            except ConnectionResetError:  # it was closed with bytes that nobody reads
                return
            finally:
                if task is not None:
                    task.cancel()
            assert status in answer.partition(b"\r\n")[0]

    check()


@edge_test
async def test_a_body_that_ends_after_its_answer_keeps_the_connection(tmp_path: Path) -> None:
    async with http_node(tmp_path, idle_timeout_s=1) as node, connected(node) as (reader, writer):
        for _ in range(3):
            writer.write(
                b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nab"
            )
            assert b" 404 " in await reader.readuntil(b"}")
            writer.write(b"cd")
        async with asyncio.timeout(20):
            assert await reader.read() == b""  # nobody asked for anything else


@edge_test
async def test_strangers_do_not_keep_out_those_who_have_a_token(tmp_path: Path) -> None:
    limits = {"connections_max": 20, "frame_timeout_s": 60.0, "handshake_timeout_s": 60.0}
    async with http_node(tmp_path, security=ASKED, **limits) as node:
        token = (tmp_path / "data" / "admin.token").read_text().strip()
        assert node.node.native_address is not None
        strangers = []
        for number in range(60):
            address = (node.address, node.node.native_address)[number % 2]
            _, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(HELD["no body"][0] if number % 2 == 0 else b"QUIVER")
            strangers.append(writer)
        reply = await node.http.get("/topics", headers={"authorization": f"Bearer {token}"})
        assert reply.status_code == 200, reply.text
        url = f"quiver://{node.node.native_address}"
        async with AsyncClient(url, token=token) as client:
            await client.create_topic("orders")
            for _ in range(30):
                _, writer = await asyncio.open_connection(node.address.host, node.address.port)
                strangers.append(writer)
            assert [one.name for one in await client.list_topics()] == ["orders"]
            reply = await node.http.get("/topics", headers={"authorization": f"Bearer {token}"})
            assert reply.status_code == 200, reply.text
        for writer in strangers:
            writer.transport.abort()


@edge_test
async def test_an_answered_request_leaves_nothing_for_the_garbage_collector(tmp_path: Path) -> None:
    """Objects that refer to each other are freed by the collector, which stops the node meanwhile."""
    async with http_node(tmp_path) as node:
        await node.queue()
        reader, writer = await asyncio.open_connection(node.address.host, node.address.port)
        body = b'{"message": 1}'
        head = b"POST /queues/emails/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"

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
            found = []
            for _ in range(3):  # what the node does by itself now and then may leave something
                await post(200)
                found.append(gc.collect())
            assert min(found) < 200
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
        publish = b"POST /queues/emails/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
        look = b"GET /queues/emails HTTP/1.1\r\nHost: localhost\r\n\r\n"
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
            b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
            + body
        )
        writer.write(upload + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20_000)
        async with asyncio.timeout(50):
            await statuses(reader, 500)
        writer.close()
        assert max(waiting) < 2 * PIPELINE_MAX + PIECE_BYTES // len(b"GET / HTTP/1.1\r\n\r\n")
