"""Opens connections to nodes over TCP, and says in one sentence why one could not be opened."""

from __future__ import annotations

import asyncio

from quiver.client.addresses import host_and_port
from quiver.client.channel import Channel
from quiver.client.connection import Connection
from quiver.errors import ConnectionLost, ProtocolError

CONNECT_TIMEOUT_S = 10.0
"""For the connection itself, and again for the greeting."""


class SocketDialer:
    """A ``Dialer`` of sockets."""

    async def dial(self, address: str) -> Channel:
        host, port = host_and_port(address)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(
                    lambda: Connection(address), host, port
                )
        except TimeoutError as error:
            raise ConnectionLost(
                f"cannot connect to {address}: no answer within {CONNECT_TIMEOUT_S:g} s"
            ) from error
        except OSError as error:
            raise ConnectionLost(
                f"cannot connect to {address}: {error.strerror or error}; is a node running there?"
            ) from error
        try:
            await connection.greet(CONNECT_TIMEOUT_S)
        except BaseException as error:
            await connection.close()
            if isinstance(error, ConnectionLost) or type(error) is ProtocolError:
                raise type(error)(
                    f"{address} did not welcome us: {error}; is it Quiver's native port?"
                ) from error
            raise
        return connection

    async def close(self) -> None:
        """Nothing is kept beside the connections."""
