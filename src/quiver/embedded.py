"""The broker embedded in this process, reached without a socket.

``EmbeddedDialer`` starts a node on a data folder when the client first needs it, in the client's own
event loop, and stops it when the client closes.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import structlog

from quiver.client import AsyncClient, Client
from quiver.config import NodeConfig
from quiver.edge.auth.principal import INTERNAL
from quiver.edge.in_process import InProcessChannel
from quiver.edge.node import Node
from quiver.model.clock import Clock


class EmbeddedDialer:
    """A ``Dialer`` whose only address is a node of its own."""

    def __init__(self, config: NodeConfig, clock: Clock | None = None) -> None:
        self._config = config
        self._clock = clock
        self._node: Node | None = None
        self._starting = asyncio.Lock()

    async def dial(self, address: str) -> InProcessChannel:
        async with self._starting:
            if self._node is None:
                self._node = await Node.start(self._config, listen=False, clock=self._clock)
        return InProcessChannel(self._node.services, INTERNAL)

    async def close(self) -> None:
        node, self._node = self._node, None
        if node is not None:
            await node.stop()


def open(folder: str | os.PathLike[str] = "./data", **client: Any) -> Client:
    """Return a client with a broker embedded in this process, with its data in ``folder``."""
    return Client(dialer=EmbeddedDialer(_config(folder)), **client)


def open_async(folder: str | os.PathLike[str] = "./data", **client: Any) -> AsyncClient:
    """Like ``open``, for async programs. The broker runs in the event loop of the first use."""
    return AsyncClient(dialer=EmbeddedDialer(_config(folder)), **client)


def _config(folder: str | os.PathLike[str]) -> NodeConfig:
    if not structlog.is_configured():
        # A library does not print: lines go where the program's own logging sends them.
        structlog.configure(
            processors=[structlog.stdlib.add_log_level, structlog.stdlib.render_to_log_kwargs],
            logger_factory=structlog.stdlib.LoggerFactory(),
            wrapper_class=structlog.stdlib.BoundLogger,
        )
    return NodeConfig(name="embedded", data=os.fspath(folder))
