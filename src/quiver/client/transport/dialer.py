"""Opens connections to nodes over TCP or TLS. Errors say what failed and what to check."""

from __future__ import annotations

import asyncio
import os
import re
import ssl

from quiver.client.transport.access import Access
from quiver.client.transport.addresses import DEFAULT_PORT, host_and_port
from quiver.client.transport.channel import Channel
from quiver.client.transport.connection import Connection
from quiver.errors import ConnectionLost, ProtocolError, QuiverError, Unauthenticated

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
                raise type(error)(self._explained(address, error)) from error
            raise
        return connection

    def _explained(self, address: str, error: QuiverError) -> str:
        if error.details.get("protocol") == "http":
            return (
                f"{address} answers with HTTP: this is Quiver's HTTP port; use the native port, "
                f"{DEFAULT_PORT} by default"
            )
        hint = "" if self._context else " and that it does not require TLS (quivers://)"
        return (
            f"{address} did not answer as a Quiver node: {error}; check that it is the native "
            f"port{hint}"
        )

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
                f"the certificate of {address} cannot be trusted: {error.verify_message or error}; "
                "give the CA that signed it with QUIVER_CA_FILE",
                certificate=address,
            ) from error
        except ssl.SSLError as error:
            raise ConnectionLost(
                f"cannot connect to {address} with TLS: {error.reason or error}; check that it uses TLS"
            ) from error
        except OSError as error:
            raise ConnectionLost(
                f"cannot connect to {address}: {_reason(error)}; check that a node runs there"
            ) from error
        return connection

    async def close(self) -> None:
        """There is nothing to close."""


def _reason(error: OSError) -> str:
    """The system's own words. Event loops have others, and one error for all addresses of a name."""
    numbers = dict.fromkeys(re.findall(r"\[Errno (\d+)\]", str(error)))
    return ", ".join(os.strerror(int(number)) for number in numbers) or error.strerror or str(error)
