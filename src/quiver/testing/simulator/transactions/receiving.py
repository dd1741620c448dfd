"""What clients receive from a queue of the simulated cluster, and consumers of the results."""

from __future__ import annotations

import msgspec
from pyroaring import BitMap64

from quiver import protocol
from quiver.cluster.records import PartitionId
from quiver.errors import QuiverError
from quiver.model.envelope import entries_in
from quiver.testing.simulator.broker_clients import BrokerClient, values_of
from quiver.testing.simulator.history import History, Read

CALL_SECONDS = 3.0
_WAIT_MS = 300


class Taken(msgspec.Struct, frozen=True):
    """What was received of one partition."""

    lease: bytes
    partition: PartitionId
    messages: tuple[tuple[int, str], ...]

    @property
    def settlement(self) -> protocol.Settlement:
        """All of it."""
        offsets = BitMap64([offset for offset, _ in self.messages])
        return protocol.Settlement(self.lease, offsets.serialize())


async def receive(client: BrokerClient, queue: str) -> list[Taken]:
    """A few messages of a queue; none if no node answers."""
    request = protocol.Receive(
        subscription=queue,
        messages_max=client.rng.choice((1, 3, 8)),
        wait_ms=_WAIT_MS,
        consumer=client.name,
    )
    try:
        answer = await client.ask_any(request, CALL_SECONDS)
    except QuiverError:
        await client.rest()
        return []
    assert isinstance(answer.reply, protocol.Received)
    body, found = memoryview(answer.body), []
    for info in answer.reply.portions:
        entries = entries_in(bytes(body[: info.size]))
        values = [value for entry in entries for _, value in values_of(entry)]
        partition = PartitionId(f"{info.topic}/{info.partition}")
        messages = tuple(zip(BitMap64.deserialize(info.offsets), values, strict=True))
        found.append(Taken(info.lease, partition, messages))
        body = body[info.size :]
    return found


class ResultConsumer:
    """Receives results, and acknowledges them at once."""

    def __init__(self, number: int, client: BrokerClient, queue: str, history: History) -> None:
        self._number = number
        self._client = client
        self._queue = queue
        self._history = history

    async def run(self) -> None:
        while True:
            invoked = self._client.loop.time()
            for taken in await receive(self._client, self._queue):
                self._note(taken, invoked)
                request = protocol.Ack(subscription=self._queue, settlements=[taken.settlement])
                try:
                    await self._client.ask_any(request, CALL_SECONDS)
                except QuiverError:
                    await self._client.rest()  # they come again

    def _note(self, taken: Taken, invoked: float) -> None:
        self._history.delivered += [(taken.partition, offset) for offset, _ in taken.messages]
        self._history.seen.append(
            Read(
                reader=self._number,
                partition=taken.partition,
                invoked=invoked,
                ended=self._client.loop.time(),
                asked=0,
                epoch=0,
                watermark=None,
                values=taken.messages,
            )
        )
