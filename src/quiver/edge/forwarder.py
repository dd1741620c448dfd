"""A forwarder: the native and the HTTP edge of other nodes, in a process that stores nothing.

Any number of them can run behind a load balancer. Each is a client of the nodes it was given, and passes
on who asks: the nodes decide who may do what.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
from contextlib import AsyncExitStack

from quiver.aio import cancel_and_wait
from quiver.client import AsyncClient
from quiver.client.transport.access import access_from_environment
from quiver.client.transport.addresses import addresses_in, is_secure
from quiver.config import Address, NodeConfig
from quiver.config.address import advertised
from quiver.config.exposure import require_safe
from quiver.edge.announcer import Announcer
from quiver.edge.auth.tls import ServerTls
from quiver.edge.http.app import edge_of
from quiver.edge.http.server import HttpServer
from quiver.edge.limits.connections import ConnectionBound
from quiver.edge.limits.forwarded_logins import ForwardedLogins
from quiver.edge.limits.sizing import sizing_of
from quiver.edge.principal_clients import ForwarderClients
from quiver.edge.relay.relay_server import RelayServer
from quiver.edge.relay.upstream_nodes import UpstreamNodes
from quiver.errors import InvalidSetting
from quiver.metrics import NodeMetrics
from quiver.metrics.forwarder_metrics import ForwarderMetrics
from quiver.model.clock import SystemClock
from quiver.protocol import Announce
from quiver.version import __version__


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
        self._logins = ForwardedLogins(self._clock)
        self.metrics = NodeMetrics(config.metrics.names_max)
        self._stack = AsyncExitStack()
        self._instance = secrets.token_hex(8)
        self._access = access_from_environment(None, None, is_secure=is_secure(config.upstream))

    async def start(self) -> None:
        require_safe(self.config)
        context = self._secured()
        self.native_address = await self._relay(context)
        if self.config.http is not None:
            self.http_address = await self._serve_http(self.config.http, context)
        announcer = Announcer(self._announcement, self._nodes, self._access, self._clock)
        self._stack.push_async_callback(announcer.stop)
        announcer.start()
        if self.config.web.webhook_targets:
            self._push(announcer)

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
        tls = self._access.tls
        relay = RelayServer(
            config.name,
            self._nodes,
            config.limits,
            self.metrics,
            self._clock,
            logins=self._logins,
            tls=None if tls is None else tls.context(),
        )
        self._stack.push_async_callback(relay.drain, config.limits.drain_timeout_s)
        return Address(*await relay.start(config.native.host, config.native.port, context))

    async def _serve_http(self, address: Address, context: ssl.SSLContext | None) -> Address:
        clients = ForwarderClients(self.config.upstream, self._clock, logins=self._logins)
        edge = edge_of(
            self.config,
            clients,
            metrics=ForwarderMetrics(self.config.name, self.metrics),
        )
        server = HttpServer(edge, ConnectionBound(sizing_of(self.config.limits).connections_max))
        self._stack.push_async_callback(server.drain, self.config.limits.drain_timeout_s)
        return await server.start(address, context)

    def _announcement(self) -> Announce:
        """What the nodes are told of this forwarder."""
        config, native, http = self.config, self.native_address, self.http_address
        return Announce(
            name=config.name,
            instance=self._instance,
            address="" if native is None else advertised(config.advertise, native),
            http="" if http is None else str(http),
            zone=config.zone,
            version=__version__,
            calls_webhooks=bool(config.web.webhook_targets),
        )

    def _push(self, announcer: Announcer) -> None:
        """Call the webhooks that the nodes leave to this forwarder."""
        # An HTTP client is loaded only where it is used.
        from quiver.edge.webhooks.pushers import Pushers  # noqa: PLC0415

        config = self.config
        client = AsyncClient(config.upstream, clock=self._clock)
        pushers = Pushers(client, config.web, self._clock, announcer.calls_webhooks_of)
        self._stack.push_async_callback(pushers.stop)
        pushers.start()
