"""How nodes speak to each other: a question, and an answer or an error."""

from __future__ import annotations

from typing import Protocol

from quiver.cluster.records import NodeId
from quiver.cluster.replica.messages import Fetch, FetchReply


class Network(Protocol):
    async def call(self, node: NodeId, request: Fetch, timeout_s: float) -> FetchReply:
        """Ask a node; ``Unavailable`` if no answer came, whether it was asked or not.

        ``NodeGone`` if nobody listens there any more: another leader is elected at once.
        """
