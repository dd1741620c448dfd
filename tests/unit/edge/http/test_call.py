"""A request that takes time: it ends with its connection, and costs little if it takes none."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from quiver.edge.http.call import Call, ClientGone
from quiver.edge.http.requests import Requests
from quiver.errors import ShuttingDown
from tests.aio import async_test


class _Connection:
    """A client that stays until it ``leaves``."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.is_watched = False

    async def receive(self) -> dict[str, Any]:
        self.is_watched = True
        await self.left.wait()
        return {"type": "http.disconnect"}


def call_on(connection: _Connection, draining: asyncio.Event | None = None) -> Call:
    edge: Any = SimpleNamespace(requests=Requests(), draining=draining or asyncio.Event())
    operation: Any = None
    return Call(edge, operation, {"path_params": {}, "headers": []}, connection.receive)


async def at_once(value: int) -> int:
    return value


@async_test
async def test_what_is_done_at_once_needs_nobody_to_watch_the_connection() -> None:
    connection = _Connection()
    assert await call_on(connection).while_connected(at_once(7)) == 7
    assert not connection.is_watched


@async_test
async def test_what_takes_time_is_waited_for() -> None:
    connection, ready = _Connection(), asyncio.Event()
    asyncio.get_running_loop().call_later(0.01, ready.set)
    assert await call_on(connection).while_connected(ready.wait()) is True
    assert connection.is_watched


@async_test
async def test_a_wait_counts_as_one_only_while_it_lasts() -> None:
    connection, ready = _Connection(), asyncio.Event()
    call = call_on(connection)
    requests = call.edge.requests
    waiting = asyncio.create_task(call.while_connected(ready.wait()))
    other = asyncio.create_task(asyncio.sleep(0))
    requests.tasks |= {waiting, other}  # type: ignore[arg-type]
    assert not requests.has_one()
    while not connection.is_watched:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0)
    assert requests.has_one()
    ready.set()
    await waiting
    assert not requests.has_one()


@async_test
async def test_a_wait_ends_with_its_connection() -> None:
    connection = _Connection()
    asyncio.get_running_loop().call_later(0.01, connection.left.set)
    call = call_on(connection)
    with pytest.raises(ClientGone):
        await call.while_connected(asyncio.Event().wait())
    assert call.is_gone


@async_test
async def test_a_wait_ends_when_the_node_stops() -> None:
    draining = asyncio.Event()
    asyncio.get_running_loop().call_later(0.01, draining.set)
    with pytest.raises(ShuttingDown):
        await call_on(_Connection(), draining).while_connected(asyncio.Event().wait())
