"""Receives and settlements of a client that was told of one node and finds the one that leads."""

from __future__ import annotations

import asyncio
import struct

from pyroaring import BitMap64

from quiver import AsyncClient, protocol
from quiver.client.transport.channel import Channel
from quiver.client.transport.known_leaders import KnownLeaders
from quiver.model.builder import BatchBuilder
from quiver.model.envelope import UNSTAMPED, store_batch
from quiver.model.ids import LeaderEpoch, Microseconds, Offset
from tests.aio import async_test, turns
from tests.unit.client.scripted_node import ScriptedChannel, ScriptedDialer, ScriptedNode

FIRST, LEADER = "first:1", "leader:1"


class QueueNode(ScriptedNode):
    """One that always has a message, or knows who has."""

    leader = ""
    partition = 0

    def answer(self, request: protocol.AnyRequest, body: bytes) -> tuple[protocol.AnyReply, bytes]:
        if isinstance(request, protocol.Ack):
            return protocol.Settled(), b""
        assert isinstance(request, protocol.Receive)
        builder = BatchBuilder()
        builder.add(b"hello")
        entry = store_batch(
            builder.build(stamp=UNSTAMPED),
            base_offset=Offset(0),
            epoch=LeaderEpoch(1),
            append_time=Microseconds(1),
            durable_offset=Offset(0),
        )
        stored = b"".join(map(bytes, entry.buffers()))
        portion = protocol.PortionInfo(
            topic="jobs",
            topic_number=1,
            partition=self.partition,
            lease=struct.pack("<IIH16x", 1, 1, self.partition),
            deadline_us=1,
            offsets=BitMap64([0]).serialize(),
            deliveries={},
            size=len(stored),
        )
        return protocol.Received(portions=[portion], leader=self.leader), stored


class Network:
    """Two nodes; the client is told of the first."""

    def __init__(self) -> None:
        self.nodes = {FIRST: QueueNode(), LEADER: QueueNode()}
        self.nodes[FIRST].leader = LEADER
        self.channels: list[ScriptedChannel] = []

    async def dial(self, address: str) -> Channel:
        channel = await ScriptedDialer(self.nodes[address]).dial(address)
        self.channels.append(channel)
        return channel

    async def close(self) -> None:
        pass

    def asked(self, address: str) -> list[str]:
        """What a node was asked since the last time."""
        found = [type(request).__name__ for request in self.nodes[address].requests]
        self.nodes[address].requests.clear()
        return found


async def work(client: AsyncClient) -> None:
    (message,) = await client.receive("jobs")
    await message.ack()
    await turns()


@async_test
async def test_the_node_that_has_the_messages_is_asked_for_the_next() -> None:
    network = Network()
    async with AsyncClient(f"quiver://{FIRST}", dialer=network) as client:
        await work(client)
        assert network.asked(FIRST) == ["Receive", "Ack"], "a connection is not waited for"
        for _ in range(2):
            await work(client)
        assert network.asked(LEADER)
        network.asked(FIRST)
        for _ in range(3):
            await work(client)
        assert network.asked(FIRST) == []
        assert network.asked(LEADER) == ["Receive", "Ack"] * 3


@async_test
async def test_a_message_is_settled_with_the_node_that_had_it_though_another_had_some_since() -> (
    None
):
    network = Network()
    network.nodes[LEADER].partition = 1
    async with AsyncClient(f"quiver://{FIRST}", dialer=network) as client:
        for _ in range(3):
            await work(client)
        network.nodes[LEADER].leader, network.nodes[LEADER].partition = FIRST, 0
        (earlier,) = await client.receive("jobs")
        network.nodes[FIRST].leader, network.nodes[FIRST].partition = LEADER, 1
        (later,) = await client.receive("jobs")
        network.asked(FIRST), network.asked(LEADER)
        await earlier.ack()
        assert (network.asked(FIRST), network.asked(LEADER)) == (["Ack"], [])
        await later.ack()
        assert (network.asked(FIRST), network.asked(LEADER)) == ([], ["Ack"])


@async_test
async def test_any_other_node_is_asked_if_the_one_that_had_messages_is_gone() -> None:
    network = Network()
    async with AsyncClient(f"quiver://{FIRST}", dialer=network) as client:
        for _ in range(4):
            await work(client)
        network.nodes[LEADER].is_down = True
        for channel in network.channels:
            if channel._node is network.nodes[LEADER]:
                channel.lose()
        network.nodes[FIRST].leader = ""
        for _ in range(3):
            await asyncio.wait_for(work(client), 5)
        assert network.asked(FIRST)[-6:] == ["Receive", "Ack"] * 3


def test_a_client_knows_the_leaders_of_a_bounded_number_of_subscriptions() -> None:
    leaders = KnownLeaders()
    for number in range(1500):
        leaders.learn(f"q{number}", LEADER)
    assert leaders.get("q499") is None
    assert leaders.get("q500") == LEADER


def test_only_the_node_that_did_not_answer_is_forgotten() -> None:
    leaders = KnownLeaders()
    leaders.learn("jobs", LEADER)
    leaders.forget("jobs", FIRST)
    leaders.forget("jobs", None)
    assert leaders.get("jobs") == LEADER
    leaders.forget("jobs", LEADER)
    assert leaders.get("jobs") is None
