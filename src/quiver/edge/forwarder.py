"""A forwarder: the HTTP edge of other nodes, in a process that stores nothing.

Any number of them may run behind a load balancer: each is a client of the nodes it was given.
"""

from __future__ import annotations

from quiver.client import AsyncClient
from quiver.config import Address, NodeConfig
from quiver.edge.http.app import edge_of
from quiver.edge.http.clients import OneClient
from quiver.edge.http.server import HttpServer
from quiver.errors import InvalidSetting


class Forwarder:
    """Not yet running; ``start`` it, and ``stop`` it whatever happens."""

    def __init__(self, config: NodeConfig) -> None:
        if not config.upstream:
            raise InvalidSetting("a forwarder needs upstream: the nodes that it forwards to")
        if config.http is None:
            raise InvalidSetting("a forwarder needs http: it serves nothing else")
        self.config = config
        self.address = config.http
        self._server: HttpServer | None = None

    async def start(self) -> Address:
        client = AsyncClient(self.config.upstream)
        self._server = HttpServer(edge_of(self.config, OneClient(client)))
        self.address = await self._server.start(self.address)
        return self.address

    async def stop(self) -> None:
        """Drain: what is under way is seen to its end, within the bound. May be called twice."""
        server, self._server = self._server, None
        if server is not None:
            await server.drain(self.config.limits.drain_timeout_s)
