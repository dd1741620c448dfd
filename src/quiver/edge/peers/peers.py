"""Connections to the other nodes of the cluster.

Nodes authenticate to each other with a secret from the metadata store. Replication has connections of
its own, so that a large copy delays no call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from quiver.aio import TaskSet
from quiver.client.transport.access import Access, Tls
from quiver.client.transport.channel import Channel
from quiver.client.transport.cluster import expect
from quiver.client.transport.dialer import SocketDialer
from quiver.client.transport.pool import Pool
from quiver.cluster.records import NodeId, NodeRecord
from quiver.cluster.replica.messages import Diverged, Entries, Fetch, FetchReply, Gone, NotLeading
from quiver.config.security import Security
from quiver.edge.peers.messages import PeerReply, Question, decode_answer, encode
from quiver.edge.peers.secrets import OVERLAP_S, PeerSecrets
from quiver.errors import ConnectionLost, NodeGone, ProtocolError, Unavailable
from quiver.model.batch import Bytes
from quiver.model.clock import Clock
from quiver.protocol import AskPeer, PeerAnswer

ASK_TIMEOUT_S = 5.0

A = TypeVar("A", bound=PeerReply)


class Peers:
    """A ``Network``. ``nodes`` says where the nodes are."""

    def __init__(
        self,
        node: NodeId,
        secrets: PeerSecrets,
        security: Security,
        clock: Clock,
        nodes: Callable[[], Mapping[NodeId, NodeRecord]],
    ) -> None:
        self._node = node
        self._nodes = nodes
        self._secrets = secrets
        self._clock = clock
        self._dialer = PeerDialer(secrets, security)
        self._ending = TaskSet()
        self._open_pools()

    def _open_pools(self) -> None:
        self._shown = self._secrets.current
        self._calls, self._copies = (
            Pool(self._dialer, ["(no node to begin with)"], clock=self._clock) for _ in range(2)
        )

    def _follow_secret(self) -> None:
        """Open new connections once the secret was replaced. What goes on ends on the old ones."""
        if self._shown != self._secrets.current:
            self._ending.start(self._end_later(self._calls, self._copies))
            self._open_pools()

    async def _end_later(self, *pools: Pool) -> None:
        try:
            await self._clock.sleep(OVERLAP_S / 2)
        finally:
            for pool in pools:
                await pool.close()

    @property
    def addresses(self) -> list[str]:
        """Where the others are that live."""
        nodes = self._nodes().values()
        return [node.address for node in nodes if node.id != self._node and node.address]

    @property
    def all_addresses(self) -> list[str]:
        """Where all nodes are that live, this one included."""
        return [node.address for node in self._nodes().values() if node.address]

    def addresses_beside(self) -> list[str]:
        """Where the other processes of this machine are, if it has several."""
        nodes = self._nodes()
        own = nodes.get(self._node)
        if own is None or not own.host:
            return []
        return [one.address for one in nodes.values() if one.host == own.host and one is not own]

    def is_peer(self, address: str) -> bool:
        return address in self.addresses

    async def channel(self, address: str) -> Channel:
        """A connection for calls that are passed on."""
        self._follow_secret()
        return await _channel(self._calls, address)

    async def ask(
        self,
        address: str,
        question: Question,
        kind: type[A],
        body: Sequence[Bytes] = (),
        timeout_s: float = ASK_TIMEOUT_S,
    ) -> A:
        channel = await self.channel(address)
        reply, _ = await channel.call(AskPeer(question=encode(question)), body, timeout_s)
        answer = decode_answer(expect(PeerAnswer, reply).answer)
        if not isinstance(answer, kind):
            raise ProtocolError(f"a node answered with {type(answer).__name__}")
        return answer

    async def call(self, node: NodeId, request: Fetch, timeout_s: float) -> FetchReply:
        known = self._nodes().get(node)
        if known is None:
            raise Unavailable(f"node {node!r} is not registered")
        self._follow_secret()
        channel = await _channel(self._copies, known.address)
        reply, body = await channel.call(AskPeer(question=encode(request)), (), timeout_s)
        answer = decode_answer(expect(PeerAnswer, reply).answer)
        if isinstance(answer, Entries):
            return msgspec.structs.replace(answer, data=bytes(body))
        if isinstance(answer, Diverged | Gone | NotLeading):
            return answer
        raise ProtocolError(f"a node answered a fetch with {type(answer).__name__}")

    async def close(self) -> None:
        await self._ending.cancel()
        await self._calls.close()
        await self._copies.close()


class PeerDialer:
    """Opens each connection with the secret and the certificate of now: both may be replaced."""

    def __init__(self, secrets: PeerSecrets, security: Security) -> None:
        self._secrets = secrets
        self._tls: Tls | None = None
        if security.tls_certificate:
            self._tls = Tls(
                ca=security.node_ca or None,
                certificate=security.tls_certificate,
                key=security.tls_key,
            )

    async def dial(self, address: str) -> Channel:
        access = Access(token=self._secrets.current, tls=self._tls)
        return await SocketDialer(access).dial(address)

    async def close(self) -> None:
        """There is nothing to close."""


async def _channel(pool: Pool, address: str) -> Channel:
    try:
        return await pool.channel(address)
    except ConnectionLost as error:
        if isinstance(error.__cause__, ConnectionRefusedError):
            raise NodeGone(error.message) from error
        raise
