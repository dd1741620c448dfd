"""Opens connections to nodes over TCP or TLS. Errors say what failed and what to check."""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import Callable, Sequence
from typing import TypeVar

from quiver.client.transport.access import Access
from quiver.client.transport.addresses import DEFAULT_PORT, host_and_port
from quiver.client.transport.channel import Channel
from quiver.client.transport.connection import Connection
from quiver.errors import (
    AccessRefused,
    ConnectionLost,
    NodeGone,
    ProtocolError,
    QuiverError,
    Unauthenticated,
)

CONNECT_TIMEOUT_S = 10.0
"""For the connection itself, and again for the greeting."""

P = TypeVar("P", bound=asyncio.BaseProtocol)


class SocketDialer:
    """A ``Dialer`` of sockets.

    The addresses in ``bootstrap`` are connected to directly. If one of them is a forwarder, every
    other node is reached through a forwarder: the nodes' own addresses may mean nothing here.
    """

    def __init__(self, access: Access = Access(), bootstrap: Sequence[str] = ()) -> None:  # noqa: B008 - frozen
        self._access = access
        self._context = None if access.tls is None else access.tls.context()
        self._bootstrap = list(bootstrap)
        self._forwarders: list[str] = []
        """Of the bootstrap, those that said they are; who connected us last is the first."""

    async def dial(self, address: str) -> Channel:
        if not self._forwarders or address in self._bootstrap:
            return await self._dial(address)
        failure: QuiverError | None = None
        for forwarder in dict.fromkeys((*self._forwarders, *self._bootstrap)):
            try:
                return await self._dial(forwarder, address)
            except AccessRefused:
                raise
            except QuiverError as error:
                failure = error
        assert failure is not None
        raise failure

    async def _dial(self, address: str, node: str = "") -> Channel:
        """Connect to an address, and through it, if it is a forwarder's, to a node."""
        connection = await connect(lambda: Connection(address), address, self._context)
        try:
            welcome = await connection.greet(CONNECT_TIMEOUT_S, self._access.token, node)
            if node and not welcome.forwards:
                raise NodeGone(f"{address} is no forwarder, and cannot connect to {node}")
        except BaseException as error:
            await connection.close()
            is_unclear = type(error) in (ConnectionLost, ProtocolError)
            if is_unclear and isinstance(error, QuiverError):
                raise type(error)(self._explained(address, error)) from error
            raise
        known = [one for one in self._forwarders if one != address]
        self._forwarders = [address, *known] if welcome.forwards else known
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

    async def close(self) -> None:
        """There is nothing to close."""


async def connect(factory: Callable[[], P], address: str, context: ssl.SSLContext | None) -> P:
    """Connect a protocol to ``host:port``. Raises ``ConnectionLost`` or ``Unauthenticated``."""
    host, port = host_and_port(address)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, connection = await loop.create_connection(factory, host, port, ssl=context)
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


def _reason(error: OSError) -> str:
    """The system's own words. Event loops have others, and one error for all addresses of a name."""
    numbers = dict.fromkeys(re.findall(r"\[Errno (\d+)\]", str(error)))
    return ", ".join(os.strerror(int(number)) for number in numbers) or error.strerror or str(error)
