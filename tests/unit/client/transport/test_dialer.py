"""A dialer tells in one way why a node cannot be reached, whatever runs the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from quiver.client.transport.access import Access
from quiver.client.transport.dialer import SocketDialer
from quiver.errors import ConnectionLost, NodeGone
from quiver.protocol import Hello
from tests.ports import free_port
from tests.unit.client.transport.framed_server import Visitor, framed_server


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_refused_connection_is_told_in_the_words_of_the_system(
    host: str, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    address = f"{host}:{free_port()}"
    with asyncio.Runner(loop_factory=new_loop) as runner, pytest.raises(ConnectionLost) as raised:
        runner.run(SocketDialer().dial(address))
    assert str(raised.value) == (
        f"cannot connect to {address}: Connection refused; check that a node runs there"
    )


class Asked:
    """A server that welcomes everybody, and the nodes that it was asked for."""

    def __init__(self, *, forwards: bool) -> None:
        self._forwards = forwards
        self.nodes: list[str] = []

    async def serve(self, visitor: Visitor) -> None:
        hello = await visitor.welcome(forwards=self._forwards)
        assert isinstance(hello, Hello)
        self.nodes.append(hello.node)
        await visitor.next_request()


def test_behind_a_forwarder_nodes_are_reached_through_it() -> None:
    async def work() -> None:
        asked = Asked(forwards=True)
        async with framed_server(asked.serve) as forwarder:
            dialer = SocketDialer(Access(), [forwarder])
            channels = [await dialer.dial(one) for one in (forwarder, "10.9.9.9:1", forwarder)]
            for channel in channels:
                await channel.close()
        assert asked.nodes == ["", "10.9.9.9:1", ""]

    asyncio.run(work())


def test_a_forwarder_that_is_gone_is_replaced_by_another_in_the_url() -> None:
    async def work() -> None:
        asked = Asked(forwards=True)
        async with framed_server(asked.serve) as other:
            async with framed_server(Asked(forwards=True).serve) as first:
                dialer = SocketDialer(Access(), [first, other])
                await (await dialer.dial(first)).close()
            for _ in range(2):
                await (await dialer.dial("10.9.9.9:1")).close()
        assert asked.nodes == ["10.9.9.9:1", "10.9.9.9:1"]

    asyncio.run(work())


def test_a_node_is_not_taken_for_a_forwarder_to_another() -> None:
    async def work() -> None:
        async with framed_server(Asked(forwards=False).serve) as node:
            async with framed_server(Asked(forwards=True).serve) as forwarder:
                dialer = SocketDialer(Access(), [forwarder, node])
                await (await dialer.dial(forwarder)).close()
            with pytest.raises(NodeGone, match="is no forwarder"):
                await dialer.dial("10.9.9.9:1")

    asyncio.run(work())


def test_without_a_forwarder_nodes_are_connected_to_directly() -> None:
    async def work() -> None:
        asked = Asked(forwards=False)
        async with framed_server(asked.serve) as one, framed_server(asked.serve) as two:
            dialer = SocketDialer(Access(), [one])
            for address in (one, two):
                await (await dialer.dial(address)).close()
        assert asked.nodes == ["", ""]

    asyncio.run(work())
