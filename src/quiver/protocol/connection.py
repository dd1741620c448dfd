"""The beginning of a connection, its heartbeat, and requests that are abandoned."""

from __future__ import annotations

from quiver.protocol.base import Reply, Request


class Hello(Request, tag="hello", omit_defaults=True):
    """The first request of a connection. Only the first one's token counts."""

    versions: list[int]
    client: str = ""
    token: str | None = None
    node: str = ""
    """To a forwarder: the address of the node to be connected with; any node if not given."""
    forwarder: str = ""
    """From a forwarder: its name. The answer lists the nodes that it may connect clients with."""

    def __repr__(self) -> str:
        return f"Hello(id={self.id}, versions={self.versions}, client={self.client!r})"


class Welcome(Reply, tag="welcome", omit_defaults=True):
    version: int
    node: str
    software: str
    frame_bytes_max: int
    requests_max: int
    """How many requests may be unanswered at a time."""
    forwards: bool = False
    """It comes through a forwarder: other nodes are reached there too, with ``node`` in ``hello``."""
    nodes: list[str] = []
    """For a forwarder: the addresses of the cluster's live nodes."""


class Ping(Request, tag="ping"):
    pass


class Abandon(Request, tag="abandon"):
    """Nobody waits for the answer to this receive or fetch any more: it ends and takes nothing."""

    request: int
