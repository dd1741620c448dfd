"""Listens for connections, and bounds TLS connections from their first byte on.

An event loop's own server reports a connection only after its handshake. This listener counts
handshakes, and closes a connection at once if there are too many.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Protocol

from quiver.aio import TaskSet

_BACKLOG = 2048
_HANDSHAKES_MIN = 16
"""So many are made even if there is no room: those who come are told so in words."""
_REST_S = 0.1


class Listener(Protocol):
    """What is used of an ``asyncio.Server``."""

    @property
    def sockets(self) -> Sequence[socket.socket]: ...
    def close(self) -> None: ...
    async def wait_closed(self) -> None: ...


async def listen(
    factory: Callable[[], asyncio.BaseProtocol],
    host: str,
    port: int,
    *,
    tls: ssl.SSLContext | None,
    handshake_timeout_s: float,
    room: Callable[[], int],
    reuse_port: bool = False,
) -> Listener:
    """Serve a protocol. ``room`` tells how many more connections there may be. ``reuse_port``: other
    processes of this machine may listen there too, and the kernel shares connections out."""
    loop = asyncio.get_running_loop()
    if tls is None:
        return await loop.create_server(
            factory, host, port, backlog=_BACKLOG, reuse_port=reuse_port or None
        )
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    with contextlib.ExitStack() as opened:
        sockets = [
            opened.enter_context(
                socket.create_server(
                    address[:2], family=family, backlog=_BACKLOG, reuse_port=reuse_port
                )
            )
            for family, _, _, _, address in dict.fromkeys(found)
        ]
        opened.pop_all()
    return TlsListener(sockets, factory, tls, handshake_timeout_s, room)


class TlsListener:
    def __init__(
        self,
        sockets: Sequence[socket.socket],
        factory: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext,
        handshake_timeout_s: float,
        room: Callable[[], int],
    ) -> None:
        self.sockets = sockets
        self._factory = factory
        self._tls = tls
        self._handshake_timeout_s = handshake_timeout_s
        self._room = room
        self._handshakes = TaskSet()
        for one in sockets:
            one.setblocking(False)
        self._accepting = [asyncio.create_task(self._accept(one)) for one in sockets]

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listening:
            while True:
                try:
                    connection, _ = await loop.sock_accept(listening)
                except OSError:  # too many open files, or the client is gone already
                    await asyncio.sleep(_REST_S)
                    continue
                self._take(connection)

    def _take(self, connection: socket.socket) -> None:
        if len(self._handshakes) >= max(_HANDSHAKES_MIN, self._room()):
            connection.close()
            return
        self._handshakes.start(self._shake_hands(connection))

    async def _shake_hands(self, connection: socket.socket) -> None:
        """From here on the connection is the protocol's, unless the handshake fails."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):  # of TLS too, and of time
            await loop.connect_accepted_socket(
                self._factory,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=self._handshake_timeout_s,
            )

    def close(self) -> None:
        for task in (*self._accepting, *self._handshakes):
            task.cancel()

    async def wait_closed(self) -> None:
        tasks = [*self._accepting, *self._handshakes]
        if tasks:
            await asyncio.wait(tasks)
