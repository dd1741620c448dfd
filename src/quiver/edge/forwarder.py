"""A forwarder: the HTTP edge of other nodes, in a process that stores nothing.

Any number of them can run behind a load balancer. Each is a client of the nodes it was given.
"""

from __future__ import annotations

import asyncio

from quiver.aio import cancel_and_wait
from quiver.config import Address, NodeConfig
from quiver.config.exposure import require_safe
from quiver.edge.auth.tls import ServerTls
from quiver.edge.http.app import edge_of
from quiver.edge.http.server import HttpServer
from quiver.edge.principal_clients import ForwarderClients
from quiver.errors import InvalidSetting
from quiver.model.clock import SystemClock


class Forwarder:
    """Not yet running; ``start`` it, and ``stop`` it whatever happens."""

    def __init__(self, config: NodeConfig) -> None:
        if not config.upstream:
            raise InvalidSetting("a forwarder needs upstream, the URL of its nodes")
        if config.http is None:
            raise InvalidSetting("a forwarder needs http, the only protocol that it serves")
        self.config = config
        self.address = config.http
        self._clock = SystemClock()
        self._server: HttpServer | None = None
        self._tls_watch: asyncio.Task[None] | None = None

    async def start(self) -> Address:
        require_safe(self.config)
        security = self.config.security
        clients = ForwarderClients(self.config.upstream, self._clock)
        self._server = HttpServer(edge_of(self.config, clients))
        context = None
        if security.tls_certificate:
            tls = ServerTls(security)
            self._tls_watch = asyncio.create_task(tls.watch(self._clock))
            context = tls.context
        self.address = await self._server.start(self.address, context)
        return self.address

    async def stop(self) -> None:
        """Drain: what is under way is seen to its end, within the bound. May be called twice."""
        await cancel_and_wait(self._tls_watch)
        self._tls_watch = None
        server, self._server = self._server, None
        if server is not None:
            await server.drain(self.config.limits.drain_timeout_s)
