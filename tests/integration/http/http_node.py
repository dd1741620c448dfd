"""A node with its HTTP edge inside the test, and a real HTTP client on a real socket."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from quiver.config import Address, Alerts, Limits, NodeConfig, Security, Web
from quiver.edge.node import Node
from quiver.model.clock import Clock
from tests.integration.edge_node import until

LOOPBACK = Address("127.0.0.1", 0)


class HttpNode:
    """A node that runs, and ``http``, a client of it."""

    def __init__(self, node: Node, http: httpx.AsyncClient) -> None:
        self.node = node
        self.http = http
        assert node.http_address is not None
        self.address = node.http_address

    async def queue(self, name: str = "emails", **settings: Any) -> None:
        made = await self.http.put(f"/queues/{name}", json=settings)
        assert made.status_code == 201, made.text

    async def received(self, name: str = "emails", **query: Any) -> list[dict[str, Any]]:
        reply = await self.http.get(f"/queues/{name}/messages", params=query)
        assert reply.status_code == 200, reply.text
        messages: list[dict[str, Any]] = reply.json()["messages"]
        return messages

    async def depth(self, name: str, state: str) -> int:
        reply = await self.http.get(f"/subscriptions/{name}")
        return int(reply.json()[state])

    async def depth_becomes(self, name: str, state: str, reached: Callable[[int], bool]) -> None:
        async with asyncio.timeout(50):
            while not reached(await self.depth(name, state)):  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.01)


@asynccontextmanager
async def http_node(
    folder: Path,
    *,
    clock: Clock | None = None,
    web: Web | None = None,
    security: Security | None = None,
    trusted: ssl.SSLContext | None = None,
    **limits: Any,
) -> AsyncIterator[HttpNode]:
    limits.setdefault("free_bytes_min", 0)
    config = NodeConfig(
        data=str(folder / "data"),
        http=LOOPBACK,
        native=LOOPBACK,
        limits=Limits(**limits),
        web=web or Web(),
        security=security or Security(),
        alerts=Alerts(defaults=False),
    )
    node = await Node.start(config, clock=clock)
    try:
        async with httpx.AsyncClient(
            base_url=f"{'https' if trusted else 'http'}://{node.http_address}",
            timeout=30,
            trust_env=False,
            verify=trusted or False,
        ) as http:
            yield HttpNode(node, http)
    finally:
        await node.stop()
    await until(lambda: len(asyncio.all_tasks()) == 1)  # nothing goes on after the end


def problem(reply: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The problem document of a reply that is one."""
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = reply.json()
    assert (document["code"], document["status"]) == (code, status)
    assert document["type"] == f"urn:quiver:error:{code}"
    assert document["title"]
    return document
