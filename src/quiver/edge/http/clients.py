"""The client that carries out a request.

Every route asks ``Clients`` for one, so authorization is decided in one place.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from quiver.client import AsyncClient


class Credentials(msgspec.Struct, frozen=True):
    """What a request shows of whoever made it."""

    authorization: str | None = None
    """The ``Authorization`` header as it came."""
    certificate: dict[str, Any] | None = None
    """The client's certificate, as ``ssl`` describes it, where TLS asked for one and checked it."""
    address: str = ""

    def __repr__(self) -> str:
        return f"Credentials(address={self.address!r})"


class Clients(Protocol):
    """Gives the client that acts for whoever shows these credentials."""

    async def of(self, credentials: Credentials) -> AsyncClient:
        """``Unauthenticated`` if the credentials are nobody's."""

    async def close(self) -> None:
        """Flush and close every client that was given out."""
