"""The HTTP edge on a socket of the node's event loop: it listens, and drains at the end."""

from __future__ import annotations

import asyncio
import ssl
from email.utils import formatdate
from typing import Any

from uvicorn.server import ServerState

from quiver.config import Address
from quiver.edge.http.connection import EdgeConfig
from quiver.edge.http.edge import Edge
from quiver.edge.limits.connections import ConnectionBound
from quiver.edge.listener import Listener, listen


class HttpServer:
    """Serves an ``Edge``, whose clients it closes. ``bound`` is shared with other listeners."""

    def __init__(self, edge: Edge, bound: ConnectionBound | None = None) -> None:
        self._edge = edge
        self._bound = bound or ConnectionBound(edge.limits.connections_max)
        self._config = EdgeConfig(edge, edge.limits, self._bound)
        self._config.load()
        self._state = ServerState()
        self._state.tasks = edge.requests.tasks
        self._server: Listener | None = None
        self._clock: asyncio.TimerHandle | None = None

    async def start(
        self, address: Address, tls: ssl.SSLContext | None = None, *, reuse_port: bool = False
    ) -> Address:
        """Listen; where, with the port that was taken."""
        self._tell_date()
        limits = self._edge.limits
        self._server = await listen(
            self._connection,
            address.host,
            address.port,
            tls=tls,
            handshake_timeout_s=limits.handshake_timeout_s,
            room=lambda: self._bound.room,
            reuse_port=reuse_port,
        )
        host, port = self._server.sockets[0].getsockname()[:2]
        return Address(host, port)

    @property
    def connection_count(self) -> int:
        return len(self._state.connections)

    def _connection(self) -> asyncio.Protocol:
        protocol: Any = self._config.http_protocol_class
        made: asyncio.Protocol = protocol(
            config=self._config, server_state=self._state, app_state={}
        )
        return made

    def _tell_date(self) -> None:
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        self._clock = asyncio.get_running_loop().call_later(1.0, self._tell_date)

    async def drain(self, timeout_s: float) -> None:
        """Take nothing new, end waits, see the rest to its end within the time; then close."""
        self._edge.draining.set()
        if self._server is not None:
            self._server.close()
        for connection in list(self._state.connections):
            if not hasattr(connection, "conn"):  # WebSockets say goodbye themselves
                connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=timeout_s)
        for task in list(self._state.tasks):
            task.cancel()
        for connection in list(self._state.connections):
            connection.transport.close()
        if self._server is not None:
            await self._server.wait_closed()
        if self._clock is not None:
            self._clock.cancel()
        await self._edge.clients.close()
