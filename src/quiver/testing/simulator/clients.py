"""Clients of the simulated cluster: idempotent producers and readers, who write down what they see."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random
from typing import Any

from quiver.cluster.records import NodeId, PartitionId
from quiver.errors import NotLeader, ProducerError, QuiverError
from quiver.testing.simulator.history import History, Read, Send
from quiver.testing.simulator.loop import VirtualLoop
from quiver.testing.simulator.messages import Found, Leads, Publish, ReadFrom, Stored, WhoLeads
from quiver.testing.simulator.network import SimulatedNetwork

_ATTEMPT_SECONDS = 1.5
_AGAIN_SECONDS = (0.02, 0.15)
REFUSED_SECONDS = 1.0
REFUSALS_MAX = 4

BY_ID = "d"
"""How values begin that have an id of their own."""


class Client:
    """Finds leaders, and asks them."""

    def __init__(
        self,
        name: str,
        nodes: list[NodeId],
        loop: VirtualLoop,
        network: SimulatedNetwork,
        rng: Random,
    ) -> None:
        self.name = name
        self.loop = loop
        self.rng = rng
        self._nodes = nodes
        self._network = network
        self._leaders: dict[PartitionId, NodeId] = {}

    async def ask_leader(self, partition: PartitionId, request: Any) -> Any:
        """Ask whoever seems to lead, once; who that is may be learnt on the way."""
        leader = self._leaders.get(partition)
        if leader is None:
            leader = await self._find_leader(partition)
        try:
            return await self.ask(leader, request)
        except QuiverError as error:
            self._leaders.pop(partition, None)
            hint = error.details.get("leader") if isinstance(error, NotLeader) else None
            if hint is not None and hint != leader:
                self._leaders[partition] = hint
            raise

    async def ask(self, node: NodeId, request: Any, timeout_s: float = _ATTEMPT_SECONDS) -> Any:
        return await self._network.call(self.name, node, request, timeout_s)

    async def publish(
        self, partition: PartitionId, producer: int, sequence: int, values: tuple[str, ...]
    ) -> Stored:
        """Have values stored, in one batch; where the first of them is."""
        request = Publish(partition=partition, producer=producer, sequence=sequence, values=values)
        stored: Stored = await self.ask_leader(partition, request)
        return stored

    async def read(self, partition: PartitionId, offset: int) -> Found:
        found: Found = await self.ask_leader(partition, ReadFrom(partition, offset))
        return found

    async def rest(self) -> None:
        await asyncio.sleep(self.rng.uniform(*_AGAIN_SECONDS))

    async def _find_leader(self, partition: PartitionId) -> NodeId:
        node = self.rng.choice(self._nodes)
        reply: Leads = await self._network.call(self.name, node, WhoLeads(partition), 0.5)
        leader = reply.node if reply.node is not None else node
        self._leaders[partition] = leader
        return leader


class Producer:
    """Sends numbered values to one partition, one batch at a time, until it is told to stop."""

    def __init__(
        self,
        client: Client,
        partition: PartitionId,
        ids: Iterator[int],
        history: History,
        *,
        pause_s: tuple[float, float],
        patience_s: float,
        by_id: bool = False,
    ) -> None:
        """``by_id``: each message has an id of its own by which a repeat is known."""
        self.stopping = False
        self.is_gone = False
        """Whether its process has ended: what it is about is tried no more."""
        self._prefix = BY_ID if by_id else ""
        self._client = client
        self._partition = partition
        self._ids = ids
        self._history = history
        self._pause_s = pause_s
        self._patience_s = patience_s

    async def run(self) -> None:
        producer, sequence = next(self._ids), 0
        while not self.stopping:
            sends = self._begin(producer, sequence)
            if await self._deliver(producer, sequence, sends):
                sequence += len(sends)
            else:
                producer, sequence = next(self._ids), 0  # nobody knows if it was stored
            await asyncio.sleep(self._client.rng.uniform(*self._pause_s))

    async def send_one(self) -> bool:
        """One send of a new producer; whether it was confirmed in time."""
        producer = next(self._ids)
        return await self._deliver(producer, 0, self._begin(producer, 0))

    def _begin(self, producer: int, sequence: int) -> list[Send]:
        now, count = self._client.loop.time(), self._client.rng.choice((1, 1, 2, 3))
        sends = [
            Send(
                producer=producer,
                sequence=number,
                partition=self._partition,
                value=f"{self._prefix}{producer}.{number}",
                invoked=now,
            )
            for number in range(sequence, sequence + count)
        ]
        self._history.sends += sends
        return sends

    async def _deliver(self, producer: int, sequence: int, sends: list[Send]) -> bool:
        """Try until it is confirmed, or patience ends; whether it was confirmed."""
        values = tuple(send.value for send in sends)
        deadline = self._client.loop.time() + self._patience_s
        refused = 0
        while self._client.loop.time() < deadline and not self.is_gone:
            try:
                stored = await self._client.publish(self._partition, producer, sequence, values)
            except ProducerError as error:
                refused += 1
                if refused > REFUSALS_MAX:
                    # It was judged against what is stored, and does not follow: something is lost.
                    self._history.trouble.append(f"{error.code} of {values} ({error})")
                    return False
                # Perhaps by a leader that has not heard yet that it was replaced.
                await asyncio.sleep(REFUSED_SECONDS)
            except QuiverError:
                await self._client.rest()
            else:
                self._confirmed(sends, stored)
                return True
        for send in sends:
            send.ended = self._client.loop.time()
        return False

    def _confirmed(self, sends: list[Send], stored: Stored) -> None:
        for place, send in enumerate(sends):
            send.outcome, send.ended = "done", self._client.loop.time()
            send.offset, send.epoch = stored.place(place), stored.epoch


class Reader:
    """Reads one partition from its beginning, and goes on as there is more."""

    def __init__(
        self, number: int, client: Client, partition: PartitionId, history: History
    ) -> None:
        self.position = 0
        self.caught_up_at = 0.0
        self._number = number
        self._client = client
        self._partition = partition
        self._history = history

    async def run(self) -> None:
        while True:
            invoked = self._client.loop.time()
            try:
                found = await self._client.read(self._partition, self.position)
            except QuiverError:
                await self._client.rest()
                continue
            self._history.reads.append(
                Read(
                    reader=self._number,
                    partition=self._partition,
                    invoked=invoked,
                    ended=self._client.loop.time(),
                    asked=self.position,
                    epoch=found.epoch,
                    watermark=found.watermark,
                    values=found.values,
                )
            )
            if found.values:
                self.position = found.values[-1][0] + 1
            else:
                self.caught_up_at = invoked
                await asyncio.sleep(self._client.rng.uniform(0.05, 0.2))
