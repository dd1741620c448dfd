"""Clients that act for a principal: how HTTP and WebSocket requests are authenticated.

``NodeClients`` are for a node: each principal has its own client, so that the node checks its calls as if
they had come over the native protocol. ``ForwarderClients`` are for a forwarder, which decides nothing:
each token has a client that passes it on. Both bound the number of clients and close unused ones.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256
from typing import Any, Protocol

import msgspec
from structlog.contextvars import bind_contextvars

from quiver.aio import cancel_and_wait
from quiver.client import AsyncClient, Tls
from quiver.edge.auth.credentials import Credentials
from quiver.edge.auth.principal import Principal
from quiver.edge.in_process import InProcessDialer
from quiver.edge.limits.forwarded_logins import ForwardedLogins
from quiver.edge.lone_publisher import NodeClient
from quiver.edge.peers.secrets import PREFIX as PEER_PREFIX
from quiver.edge.services import NodeServices
from quiver.errors import Overloaded, QuiverError, Unauthenticated
from quiver.model.clock import Clock

CLIENTS_MAX = 1000
_SWEEP_S = 1.0
_UNUSED_S = 300.0
"""A forwarder closes a client that was not asked for in this time, if it needs the room."""
NO_TOKEN = "none"  # noqa: S105 - what stands for no token at all
"""Passed on for who has none, so that nobody acts with the forwarder's own token or certificate."""


class Shown(Protocol):
    """What an HTTP request shows of whoever made it."""

    @property
    def authorization(self) -> str | None: ...
    @property
    def certificate(self) -> dict[str, Any] | None: ...
    @property
    def address(self) -> str: ...


def bearer_token(authorization: str | None) -> str | None:
    """The token in an ``Authorization`` header; ``Unauthenticated`` if it is of another kind."""
    if authorization is None:
        return None
    scheme, _, token = authorization.strip().partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated(
            "the Authorization header is not valid; write it as 'Authorization: Bearer qv_…'"
        )
    if token.strip().startswith(PEER_PREFIX):
        # A forwarder would pass it on to the native port.
        raise Unauthenticated("nodes of a cluster use the native protocol")
    return token.strip()


class _Held(msgspec.Struct):
    client: AsyncClient
    dialer: InProcessDialer
    principal: Principal


class NodeClients:
    """``of`` whoever asks; ``close`` it with the edge.

    ``is_alone`` says whether no other request came together with the one that is being handled.
    """

    def __init__(
        self,
        services: NodeServices,
        *,
        is_alone: Callable[[], bool] = lambda: False,
        clients_max: int = CLIENTS_MAX,
    ) -> None:
        self._services = services
        self._is_alone = is_alone
        self._clients_max = clients_max
        self._held: OrderedDict[int, _Held] = OrderedDict()
        self._sweeper: asyncio.Task[None] | None = None

    async def of(self, credentials: Shown) -> AsyncClient:
        """The client of a principal.

        ``Unauthenticated`` if the credentials are nobody's, ``QuotaExceeded`` while the principal
        is over its rates.
        """
        authority, clock = self._services.authority, self._services.clock
        principal = authority.authenticate(
            Credentials(
                token=bearer_token(credentials.authorization),
                certificate=credentials.certificate,
                address=credentials.address,
            )
        )
        # The client is shared by all who have the token: its lines say from where this one came.
        bind_contextvars(address=credentials.address)
        usage = authority.usage(principal)
        if usage is not None:
            usage.require_paid(clock.monotonic())
        if id(principal) not in self._held:
            await self._make_room()
        held = self._held.get(id(principal))  # another request may have made it meanwhile
        if held is None:
            dialer = InProcessDialer(self._services, principal)
            client = NodeClient(self._services, principal, dialer, self._is_alone)
            held = _Held(client, dialer, principal)
            self._held[id(principal)] = held
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep())
        self._held.move_to_end(id(principal))
        return held.client

    async def close(self) -> None:
        """Flush and close every client that was given out."""
        await cancel_and_wait(self._sweeper)
        while self._held:
            _, held = self._held.popitem()
            await held.client.close()

    async def _make_room(self) -> None:
        if len(self._held) < self._clients_max:
            return
        for key, held in self._held.items():
            if held.dialer.is_idle:
                await self._drop(key)
                return
        raise Overloaded(
            f"{self._clients_max:,} principals have running requests, the most allowed; try again"
        )

    async def _drop(self, key: int) -> None:
        held = self._held.pop(key, None)
        if held is None:
            return
        with contextlib.suppress(QuiverError):  # what could not be flushed was told to who sent it
            await held.client.close()

    async def _sweep(self) -> None:
        """Once a second, end what goes on for those whose token counts no more."""
        clock = self._services.clock
        while True:
            await clock.sleep(_SWEEP_S)
            now_us = clock.time_us()
            for key, held in list(self._held.items()):
                if held.principal.is_over(now_us):
                    held.dialer.end(Unauthenticated("the token has expired or was revoked"))
                    await self._drop(key)


class _Forwarded(msgspec.Struct):
    client: AsyncClient
    used: float


class ForwarderClients:
    """The same for a forwarder: the nodes behind it decide who may do what."""

    def __init__(
        self,
        upstream: str,
        clock: Clock,
        *,
        tls: Tls | None = None,
        clients_max: int = CLIENTS_MAX,
        logins: ForwardedLogins | None = None,
    ) -> None:
        self._upstream = upstream
        self._clock = clock
        self._tls = tls
        self._clients_max = clients_max
        self._held: OrderedDict[bytes, _Forwarded] = OrderedDict()
        self._logins = logins or ForwardedLogins(clock)

    async def of(self, credentials: Shown) -> AsyncClient:
        """The client of a token; ``Unauthenticated`` if the nodes behind do not know it."""
        token = bearer_token(credentials.authorization)
        key = sha256((token or "").encode()).digest()
        held = self._held.get(key)
        if held is None:
            held = await self._opened(key, token, credentials.address)
        held.used = self._clock.monotonic()
        self._held.move_to_end(key)
        return held.client

    async def _opened(self, key: bytes, token: str | None, address: str) -> _Forwarded:
        async with self._logins.asking(address):
            return await self._asked(key, token)

    async def _asked(self, key: bytes, token: str | None) -> _Forwarded:
        await self._make_room()
        client = AsyncClient(self._upstream, token=token or NO_TOKEN, tls=self._tls)
        try:
            await client.describe_node()
        except BaseException:
            await client.close()
            raise
        # Another request of the same token may have been faster: one client is enough.
        known = self._held.get(key)
        if known is not None:
            await client.close()
            return known
        held = self._held[key] = _Forwarded(client, self._clock.monotonic())
        return held

    async def close(self) -> None:
        """Flush and close every client that was given out."""
        while self._held:
            _, held = self._held.popitem()
            await held.client.close()

    async def _make_room(self) -> None:
        if len(self._held) < self._clients_max:
            return
        key, oldest = next(iter(self._held.items()))
        if self._clock.monotonic() - oldest.used < _UNUSED_S:
            raise Overloaded(
                f"{self._clients_max:,} tokens are in use through this forwarder, the most allowed; try again"
            )
        del self._held[key]
        await oldest.client.close()
