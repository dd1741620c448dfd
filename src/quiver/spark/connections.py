"""One client for each address and process, kept for as long as the process lives.

Spark's worker processes are used again and again: a task finds the connection of the one before it.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time

import msgspec

from quiver.client import Client, Tls
from quiver.client.transport.addresses import DEFAULT_URL
from quiver.errors import ConnectionLost
from quiver.model.units import seconds


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

    def task_client(self) -> Client:
        """The same for a task. The driver has reached the nodes, so they are away for a while only:
        a process that has just begun waits for them as long as one that knew them."""
        client = self.client()
        if self not in _reached:
            deadline = time.monotonic() + seconds(self.timeout)
            while True:
                try:
                    client.describe_node()
                    break
                except ConnectionLost:
                    if time.monotonic() >= deadline:
                        raise
                time.sleep(_AGAIN_S)
            _reached.add(self)
            spare_collector()
        return client


def spare_collector() -> None:
    """Have the garbage collector leave alone what is loaded by now, in Spark's own Python processes.

    Their daemon collects after every task, and to look through PySpark and Arrow takes longer than
    a small task does.
    """
    if os.path.basename(sys.argv[0]) == _DAEMON and not gc.get_freeze_count():
        gc.collect()
        gc.freeze()


_DAEMON = "daemon.py"
"""What has forked this process: PySpark's, or the one in this package."""
_AGAIN_S = 0.2
_reached: set[Nodes] = set()
_clients: dict[Nodes, Client] = {}
_lock = threading.Lock()
