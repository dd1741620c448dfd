"""A forwarder: the native and the HTTP edge of other nodes, in a process that stores nothing.

Any number of them can run behind a load balancer. Each is a client of the nodes it was given, and passes
on who asks: the nodes decide who may do what.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import AsyncExitStack

from quiver.aio import cancel_and_wait
from quiver.client.transport.access import access_from_environment
from quiver.client.transport.addresses import addresses_in, is_secure
from quiver.config import Address, NodeConfig
from quiver.config.exposure import require_safe
from quiver.edge.auth.tls import ServerTls
from quiver.edge.http.app import edge_of
from quiver.edge.http.server import HttpServer
from quiver.edge.principal_clients import ForwarderClients, forwarder_attempts
from quiver.edge.relay.relay_server import RelayServer
from quiver.edge.relay.upstream_nodes import UpstreamNodes
from quiver.errors import InvalidSetting
from quiver.metrics import NodeMetrics
from quiver.model.clock import SystemClock


class Forwarder:
    """Not yet running; ``start`` it, and ``stop`` it whatever happens."""

    def __init__(self, config: NodeConfig) -> None:
        if not config.upstream:
            raise InvalidSetting("a forwarder needs upstream, the URL of its nodes")
        self.config = config
        self.native_address: Address | None = None
        self.http_address: Address | None = None
        self._nodes = UpstreamNodes(addresses_in(config.upstream))
        self._clock = SystemClock()
        self._attempts = forwarder_attempts()
        self.metrics = NodeMetrics(config.metrics.names_max)
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        require_safe(self.config)
        context = self._secured()
        self.native_address = await self._relay(context)
        if self.config.http is not None:
            self.http_address = await self._serve_http(self.config.http, context)

    async def stop(self) -> None:
        """Drain: what is under way is seen to its end, within the bound. May be called twice."""
        await self._stack.aclose()

    def _secured(self) -> ssl.SSLContext | None:
        """What the listeners encrypt with, if they do."""
        security = self.config.security
        if not security.tls_certificate:
            return None
        tls = ServerTls(security)
        watch = asyncio.create_task(tls.watch(self._clock))
        self._stack.push_async_callback(cancel_and_wait, watch)
        return tls.context

    async def _relay(self, context: ssl.SSLContext | None) -> Address:
        config = self.config
        access = access_from_environment(None, None, is_secure=is_secure(config.upstream))
        relay = RelayServer(
            config.name,
            self._nodes,
            config.limits,
            self.metrics,
            self._clock,
            attempts=self._attempts,
            tls=None if access.tls is None else access.tls.context(),
        )
        self._stack.push_async_callback(relay.drain, config.limits.drain_timeout_s)
        return Address(*await relay.start(config.native.host, config.native.port, context))

    async def _serve_http(self, address: Address, context: ssl.SSLContext | None) -> Address:
        clients = ForwarderClients(self.config.upstream, self._clock, attempts=self._attempts)
        server = HttpServer(edge_of(self.config, clients))
        self._stack.push_async_callback(server.drain, self.config.limits.drain_timeout_s)
        return await server.start(address, context)
