"""Connections to the other nodes of the cluster.

Nodes authenticate to each other with a secret from the metadata store. Replication has connections of
its own, so that a large copy delays no call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from quiver.client.transport.access import Access, Tls
from quiver.client.transport.channel import Channel
from quiver.client.transport.cluster import expect
from quiver.client.transport.dialer import SocketDialer
from quiver.client.transport.pool import Pool
from quiver.cluster.metadata.secret import kept_secret
from quiver.cluster.metadata.store import MetadataStore
from quiver.cluster.records import NodeId, NodeRecord
from quiver.cluster.replica.messages import Diverged, Entries, Fetch, FetchReply, Gone, NotLeading
from quiver.config.security import Security
from quiver.edge.peers.messages import PeerReply, Question, decode_answer, encode
from quiver.errors import ConnectionLost, NodeGone, ProtocolError, Unavailable
from quiver.model.batch import Bytes
from quiver.model.clock import Clock
from quiver.protocol import AskPeer, PeerAnswer

SECRET = "secrets/peers"  # noqa: S105 - a key in the metadata store
ASK_TIMEOUT_S = 5.0

A = TypeVar("A", bound=PeerReply)


async def peer_secret(store: MetadataStore) -> str:
    """What nodes know each other by."""
    return f"peer_{(await kept_secret(store, SECRET)).hex()}"


class Peers:
    """A ``Network``. ``nodes`` says where the nodes are."""

    def __init__(
        self,
        node: NodeId,
        secret: str,
        security: Security,
        clock: Clock,
        nodes: Callable[[], Mapping[NodeId, NodeRecord]],
    ) -> None:
        self._node = node
        self._nodes = nodes
        tls = None
        if security.tls_certificate:
            tls = Tls(
                ca=security.tls_ca or security.tls_client_ca or None,
                certificate=security.tls_certificate,
                key=security.tls_key,
            )
        dialer = SocketDialer(Access(token=secret, tls=tls))
        self._calls, self._copies = (
            Pool(dialer, ["(no node to begin with)"], clock=clock) for _ in range(2)
        )

    @property
    def addresses(self) -> list[str]:
        """Where the others are that live."""
        nodes = self._nodes().values()
        return [node.address for node in nodes if node.id != self._node and node.address]

    @property
    def all_addresses(self) -> list[str]:
        """Where all nodes are that live, this one included."""
        return [node.address for node in self._nodes().values() if node.address]

    def is_peer(self, address: str) -> bool:
        return address in self.addresses

    async def channel(self, address: str) -> Channel:
        """A connection for calls that are passed on."""
        return await _channel(self._calls, address)

    async def ask(
        self,
        address: str,
        question: Question,
        kind: type[A],
        body: Sequence[Bytes] = (),
        timeout_s: float = ASK_TIMEOUT_S,
    ) -> A:
        channel = await _channel(self._calls, address)
        reply, _ = await channel.call(AskPeer(question=encode(question)), body, timeout_s)
        answer = decode_answer(expect(PeerAnswer, reply).answer)
        if not isinstance(answer, kind):
            raise ProtocolError(f"a node answered with {type(answer).__name__}")
        return answer

    async def call(self, node: NodeId, request: Fetch, timeout_s: float) -> FetchReply:
        known = self._nodes().get(node)
        if known is None:
            raise Unavailable(f"node {node!r} is not registered")
        channel = await _channel(self._copies, known.address)
        reply, body = await channel.call(AskPeer(question=encode(request)), (), timeout_s)
        answer = decode_answer(expect(PeerAnswer, reply).answer)
        if isinstance(answer, Entries):
            return msgspec.structs.replace(answer, data=bytes(body))
        if isinstance(answer, Diverged | Gone | NotLeading):
            return answer
        raise ProtocolError(f"a node answered a fetch with {type(answer).__name__}")

    async def close(self) -> None:
        await self._calls.close()
        await self._copies.close()


async def _channel(pool: Pool, address: str) -> Channel:
    try:
        return await pool.channel(address)
    except ConnectionLost as error:
        if isinstance(error.__cause__, ConnectionRefusedError):
            raise NodeGone(error.message) from error
        raise
