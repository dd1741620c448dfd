"""A dialer tells in one way why a node cannot be reached, whatever runs the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from quiver.client.transport.dialer import SocketDialer
from quiver.errors import ConnectionLost
from tests.ports import free_port


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
