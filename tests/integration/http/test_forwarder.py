"""A forwarder serves HTTP for a node behind it, and keeps nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import connect

from quiver.config import NodeConfig
from quiver.edge.forwarder import Forwarder
from quiver.errors import InvalidSetting
from tests.integration.edge_node import Running, edge_test, running, until
from tests.integration.http.http_node import LOOPBACK, problem
from tests.serving import served, unused_address


@asynccontextmanager
async def forwarding(upstream: str) -> AsyncIterator[httpx.AsyncClient]:
    config = NodeConfig(role="forwarder", upstream=upstream, native=LOOPBACK, http=LOOPBACK)
    forwarder = Forwarder(config)
    try:
        await forwarder.start()
        async with httpx.AsyncClient(
            base_url=f"http://{forwarder.http_address}", timeout=30, trust_env=False
        ) as http:
            yield http
    finally:
        await forwarder.stop()


@edge_test
async def test_two_forwarders_serve_the_same_queue(tmp_path: Path) -> None:
    async with (
        running(tmp_path) as node,
        forwarding(f"quiver://{node.address}") as one,
        forwarding(f"quiver://{node.address}") as two,
    ):
        assert (await one.put("/queues/emails")).status_code == 201
        sent = await two.post("/queues/emails/messages", json={"message": "hello"})
        assert sent.status_code == 201
        reply = await one.get("/queues/emails/messages?wait=20")
        [message] = reply.json()["messages"]
        assert message["body"] == "hello"
        gone = await two.delete(f"/queues/emails/messages/{message['receipt_handle']}")
        assert gone.status_code == 204


@edge_test
async def test_a_stream_passes_through_a_forwarder(tmp_path: Path) -> None:
    async with running(tmp_path) as node, forwarding(f"quiver://{node.address}") as http:
        await http.put("/queues/emails")
        await http.post("/queues/emails/messages", json={"message": 1})
        url = f"ws://{http.base_url.host}:{http.base_url.port}/subscriptions/emails/stream"
        async with connect(url, proxy=None) as socket:
            await socket.send('{"type": "credit", "messages": 1}')
            async with asyncio.timeout(50):
                frame = json.loads(await socket.recv())
            assert [message["body"] for message in frame["messages"]] == [1]


@edge_test
async def test_a_wait_that_is_left_takes_nothing_through_a_forwarder(tmp_path: Path) -> None:
    async with running(tmp_path) as node, forwarding(f"quiver://{node.address}") as http:
        await http.put("/queues/emails")
        waiting = asyncio.create_task(http.get("/queues/emails/messages?wait=20"))
        await until(lambda: _waiters(node) == 1)
        waiting.cancel()
        await asyncio.wait([waiting])
        await until(lambda: _waiters(node) == 0)
        await http.post("/queues/emails/messages", json={"message": 1})
        [message] = (await http.get("/queues/emails/messages")).json()["messages"]
        assert message.get("deliveries", 1) == 1


@edge_test
async def test_without_a_node_behind_it_a_forwarder_says_so() -> None:
    async with forwarding(f"quiver://{unused_address()}") as http:
        reply = await http.get("/queues")
        assert problem(reply, 503, "connection_lost")["retry_after"] == 1
        assert (await http.get("/healthz")).status_code == 200


def test_a_forwarder_needs_somebody_to_forward_to() -> None:
    with pytest.raises(InvalidSetting, match="upstream"):
        Forwarder(NodeConfig(role="forwarder"))


@pytest.mark.process
def test_serve_runs_a_forwarder_that_keeps_no_data(tmp_path: Path) -> None:
    with served(tmp_path / "node", "--http", "off") as node:
        flags = ("--role", "forwarder", "--upstream", node.url)
        with served(tmp_path / "forwarder", *flags) as forwarder:
            made = httpx.put(f"{forwarder.http}/queues/emails", trust_env=False)
            assert made.status_code == 201
            assert forwarder.stop() == 0
            assert not forwarder.data.exists()


def _waiters(node: Running) -> int:
    subscriptions = node.node.services.broker.directory._at_work
    return sum(len(each._waiters) for each in subscriptions.values())
