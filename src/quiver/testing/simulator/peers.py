"""The other nodes, as a simulated node's edge reaches them: over the simulated network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quiver import protocol
from quiver.aio import retrieve_exception
from quiver.cluster.records import NodeId, NodeRecord
from quiver.edge.peers.messages import PeerReply, Question, decode_answer, encode
from quiver.model.batch import Bytes
from quiver.testing.simulator.messages import Answer, Ask
from quiver.testing.simulator.network import SimulatedNetwork

_TIMEOUT_SECONDS = 2.0


class SimulatedPeers:
    """What the edge uses of ``quiver.edge.peers.peers.Peers``. A node's address is its name."""

    def __init__(
        self,
        name: str,
        network: SimulatedNetwork,
        nodes: Callable[[], Mapping[NodeId, NodeRecord]],
    ) -> None:
        self._name = name
        self._network = network
        self._nodes = nodes

    @property
    def addresses(self) -> list[str]:
        return [node.address for node in self._nodes().values() if node.id != self._name]

    async def channel(self, address: str) -> PeerChannel:
        return PeerChannel(self._network, self._name, address)

    async def ask(
        self,
        address: str,
        question: Question,
        kind: type[PeerReply],
        body: Sequence[Bytes] = (),
        timeout_s: float = _TIMEOUT_SECONDS,
    ) -> PeerReply:
        channel = await self.channel(address)
        reply, _ = await channel.call(protocol.AskPeer(question=encode(question)), body, timeout_s)
        assert isinstance(reply, protocol.PeerAnswer)
        answer = decode_answer(reply.answer)
        assert isinstance(answer, kind)
        return answer


class PeerChannel:
    def __init__(self, network: SimulatedNetwork, name: str, address: str) -> None:
        self._network = network
        self._name = name
        self._address = address

    async def call(
        self,
        request: protocol.AnyRequest,
        body: Sequence[Bytes] = (),
        timeout_s: float = _TIMEOUT_SECONDS,
    ) -> tuple[protocol.AnyReply, bytes]:
        ask = Ask(request, b"".join(map(bytes, body)), is_peer=True)
        answer = await asked(self._network, self._name, self._address, ask, timeout_s)
        return answer.reply, answer.body


async def asked(
    network: SimulatedNetwork, source: str, target: str, ask: Ask, timeout_s: float
) -> Answer:
    """The answer. What a receive gets that nobody waits for any more is returned, as clients do."""
    call = asyncio.ensure_future(network.call(source, target, ask, timeout_s))

    def finish(done: asyncio.Future[Any]) -> None:
        if done.cancelled() or done.exception() is not None:
            return
        reply = done.result().reply
        if isinstance(ask.request, protocol.Receive) and reply.portions:
            taken = [protocol.Settlement(one.lease, one.offsets) for one in reply.portions]
            request = protocol.Return(subscription=ask.request.subscription, settlements=taken)
            again = Ask(request, is_peer=ask.is_peer)
            returning = asyncio.ensure_future(network.call(source, target, again, timeout_s))
            returning.add_done_callback(retrieve_exception)

    try:
        answer: Answer = await asyncio.shield(call)
        return answer
    except asyncio.CancelledError:
        call.add_done_callback(finish)
        raise
