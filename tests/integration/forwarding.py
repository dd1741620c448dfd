"""Forwarders for tests, and a dialer that remembers which addresses were connected to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from quiver.client.transport.channel import Channel
from quiver.client.transport.dialer import SocketDialer
from quiver.config import Address, NodeConfig
from quiver.edge.forwarder import Forwarder

_FREE = Address("127.0.0.1", 0)


class RecordingDialer(SocketDialer):
    """``dialed`` are the addresses that were connected to, each with the node behind it, if any."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.dialed: set[tuple[str, str]] = set()

    async def _dial(self, address: str, node: str = "") -> Channel:
        self.dialed.add((address, node))
        return await super()._dial(address, node)


@asynccontextmanager
async def forwarder_of(upstream: str, **settings: Any) -> AsyncIterator[Forwarder]:
    settings = {"native": _FREE, "http": None, "name": "forwarder-1"} | settings
    forwarder = Forwarder(NodeConfig(role="forwarder", upstream=upstream, **settings))
    try:
        await forwarder.start()
        yield forwarder
    finally:
        await forwarder.stop()
