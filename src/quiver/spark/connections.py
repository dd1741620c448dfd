"""One client for each address and process, kept for as long as the process lives.

Spark's worker processes are used again and again: a task finds the connection of the one before it.
"""

from __future__ import annotations

import threading

from quiver.client import Client

_clients: dict[tuple[str, str], Client] = {}
_lock = threading.Lock()


def client_of(url: str, timeout: str) -> Client:
    """The client of this process for the address; it is closed when the process ends."""
    with _lock:
        client = _clients.get((url, timeout))
        if client is None:
            client = _clients[url, timeout] = Client(url, timeout=timeout)
        return client
