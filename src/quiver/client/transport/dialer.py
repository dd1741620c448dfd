"""Opens connections to nodes over TCP or TLS, and says in one sentence why one could not be opened."""

from __future__ import annotations

import asyncio
import ssl

from quiver.client.transport.access import Access
from quiver.client.transport.addresses import host_and_port
from quiver.client.transport.channel import Channel
from quiver.client.transport.connection import Connection
from quiver.errors import ConnectionLost, ProtocolError, Unauthenticated

CONNECT_TIMEOUT_S = 10.0
"""For the connection itself, and again for the greeting."""


class SocketDialer:
    """A ``Dialer`` of sockets."""

    def __init__(self, access: Access = Access()) -> None:  # noqa: B008 - frozen
        self._access = access
        self._context = None if access.tls is None else access.tls.context()

    async def dial(self, address: str) -> Channel:
        connection = await self._connect(address)
        try:
            await connection.greet(CONNECT_TIMEOUT_S, self._access.token)
        except BaseException as error:
            await connection.close()
            if isinstance(error, ConnectionLost) or type(error) is ProtocolError:
                hint = "" if self._context else ", and does it not ask for TLS (quivers://)"
                raise type(error)(
                    f"{address} did not welcome us: {error}; is it Quiver's native port{hint}?"
                ) from error
            raise
        return connection

    async def _connect(self, address: str) -> Connection:
        host, port = host_and_port(address)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(
                    lambda: Connection(address), host, port, ssl=self._context
                )
        except TimeoutError as error:
            raise ConnectionLost(
                f"cannot connect to {address}: no answer within {CONNECT_TIMEOUT_S:g} s"
            ) from error
        except ssl.SSLCertVerificationError as error:
            raise Unauthenticated(
                f"cannot trust {address}: {error.verify_message or error}; "
                "name who signs its certificate with QUIVER_CA_FILE"
            ) from error
        except ssl.SSLError as error:
            raise ConnectionLost(
                f"cannot speak TLS with {address}: {error.reason or error}; does it have TLS?"
            ) from error
        except OSError as error:
            raise ConnectionLost(
                f"cannot connect to {address}: {error.strerror or error}; is a node running there?"
            ) from error
        return connection

    async def close(self) -> None:
        """Nothing is kept beside the connections."""
