"""HTTP requests that go out of the node, only to allowed webhook targets.

The address is checked where the socket is made: there it is known, however the URL writes it and whether
or not the client has resolved it.

Separate from ``targets``, so that a node without webhooks does not load an HTTP client.
"""

from __future__ import annotations

import socket
from functools import partial

import aiohttp
from aiohttp import AddrInfoType
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from quiver.edge.webhooks.targets import Targets

_CONNECTIONS_MAX = 256


def guarded_session(targets: Targets) -> aiohttp.ClientSession:
    """A client that keeps no cookies, takes no proxy, and resolves every name anew and guarded."""
    connector = aiohttp.TCPConnector(
        resolver=GuardedResolver(targets),
        limit=_CONNECTIONS_MAX,
        use_dns_cache=False,
        socket_factory=partial(_guarded_socket, targets),
    )
    return aiohttp.ClientSession(
        connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
    )


def _guarded_socket(targets: Targets, address: AddrInfoType) -> socket.socket:
    family, kind, protocol, _, place = address
    if not targets.may_reach(str(place[0])):
        raise OSError(f"web.webhook_targets does not allow the address {place[0]}")
    return socket.socket(family, kind, protocol)


class GuardedResolver(AbstractResolver):
    """Resolves only to addresses that may be reached."""

    def __init__(self, targets: Targets) -> None:
        self._targets = targets
        self._resolver = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        allowed = [one for one in found if self._targets.may_reach(one["host"])]
        if not allowed:
            raise OSError(f"web.webhook_targets does not allow the address of {host}")
        return allowed

    async def close(self) -> None:
        await self._resolver.close()
