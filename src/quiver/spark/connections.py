"""One client for each address and process, kept for as long as the process lives.

Spark's worker processes are used again and again: a task finds the connection of the one before it.
"""

from __future__ import annotations

import threading

import msgspec

from quiver.client import Client, Tls
from quiver.client.addresses import DEFAULT_URL


class Nodes(msgspec.Struct, frozen=True, kw_only=True):
    """Where the nodes are, how long one may be away, and how to be let in."""

    url: str = DEFAULT_URL
    timeout: str = "30s"
    token: str | None = None
    tls: Tls | None = None

    def __repr__(self) -> str:
        return f"Nodes({self.url})"  # without the token

    def client(self) -> Client:
        """The client of this process; it is closed when the process ends."""
        with _lock:
            client = _clients.get(self)
            if client is None:
                client = _clients[self] = Client(
                    self.url, timeout=self.timeout, token=self.token, tls=self.tls
                )
            return client


_clients: dict[Nodes, Client] = {}
_lock = threading.Lock()
