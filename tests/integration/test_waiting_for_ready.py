"""``await_ready``: it says when a receive may get something, and leases nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from quiver import protocol
from quiver.client import AsyncClient
from quiver.config import NodeConfig
from quiver.edge.in_process import InProcessChannel
from quiver.embedded import EmbeddedDialer
from quiver.errors import SubscriptionNotFound
from quiver.testing.clock import ManualClock
from tests.aio import async_test, turns


@asynccontextmanager
async def queue(
    folder: Path, clock: ManualClock, **settings: Any
) -> AsyncIterator[tuple[AsyncClient, InProcessChannel]]:
    dialer = EmbeddedDialer(NodeConfig(data=str(folder)), clock)
    async with AsyncClient(dialer=dialer) as client:
        await client.create_queue("q", **settings)
        yield client, await dialer.dial("")


def awaiting(
    channel: InProcessChannel, wait_ms: int = 20_000, consumer: str = ""
) -> asyncio.Task[bool]:
    async def wait() -> bool:
        request = protocol.AwaitReady(subscription="q", wait_ms=wait_ms, consumer=consumer)
        reply, _ = await channel.call(request)
        assert isinstance(reply, protocol.Ready)
        return reply.is_ready

    return asyncio.create_task(wait())


@async_test
async def test_it_is_answered_when_a_message_comes_and_the_message_stays_ready(
    tmp_path: Path,
) -> None:
    async with queue(tmp_path, ManualClock()) as (client, channel):
        first, second = awaiting(channel), awaiting(channel)
        await turns()
        await client.publish("q", "1")
        done, _ = await asyncio.wait({first, second}, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result() for task in done] == [True]
        info = await client.describe_subscription("q")
        assert (info.ready, info.leased) == (1, 0)
        (message,) = await client.receive("q")
        assert message.deliveries == 1
        for task in (first, second):
            task.cancel()


@async_test
async def test_it_is_answered_at_once_while_something_is_ready(tmp_path: Path) -> None:
    async with queue(tmp_path, ManualClock()) as (client, channel):
        await client.publish("q", "1")
        assert await awaiting(channel)
        assert await awaiting(channel, wait_ms=0)


@async_test
async def test_it_ends_with_its_time(tmp_path: Path) -> None:
    clock = ManualClock()
    async with queue(tmp_path, clock) as (_, channel):
        assert not await awaiting(channel, wait_ms=0)
        waiting = awaiting(channel, wait_ms=2000)
        await turns()
        await clock.advance(2.1)
        assert not await waiting


@async_test
async def test_a_lapse_and_a_return_are_noticed(tmp_path: Path) -> None:
    clock = ManualClock()
    async with queue(tmp_path, clock, visibility="3s", backoff={"min": 0}) as (client, channel):
        await client.publish("q", "1")
        (message,) = await client.receive("q")
        waiting = awaiting(channel)
        await turns()
        await client.give_back("q", [message])
        assert await waiting
        assert await client.receive("q")
        waiting = awaiting(channel)
        await turns()
        await clock.advance(4.0)
        assert await waiting


@async_test
async def test_one_message_is_not_announced_to_all_who_wait(tmp_path: Path) -> None:
    async with queue(tmp_path, ManualClock()) as (client, channel):
        waiting = [awaiting(channel, consumer=f"w{number}") for number in range(20)]
        while len((await client.describe_subscription("q")).consumers or ()) < 20:
            await turns()
        await client.publish("q", "1")
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert await client.receive("q")
        await turns(500)
        assert sum(task.done() for task in waiting) == 1
        for task in waiting:
            task.cancel()


@async_test
async def test_a_subscription_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    async with queue(tmp_path, ManualClock()) as (_, channel):
        with pytest.raises(SubscriptionNotFound):
            await channel.call(protocol.AwaitReady(subscription="other"))


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_receive_that_is_cancelled_as_its_answer_comes_leaves_no_lease(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiving: asyncio.Task[Any] | None = None
    pass_on = InProcessChannel._receive

    def cancelling(self: InProcessChannel, reply: Any, body: Any = ()) -> None:
        """The program leaves just before its answer is there, or before it looks at it."""
        is_it = isinstance(reply, protocol.Received) and receiving is not None
        if is_it and moment == "before":
            receiving.cancel()  # type: ignore[union-attr]
        pass_on(self, reply, body)
        if is_it and moment == "after":
            receiving.cancel()  # type: ignore[union-attr]

    monkeypatch.setattr(InProcessChannel, "_receive", cancelling)

    @async_test
    async def check() -> None:
        nonlocal receiving
        async with queue(tmp_path, ManualClock(), visibility="10m") as (client, _):
            receiving = asyncio.create_task(client.receive("q", wait="20s"))
            await turns()
            await client.publish("q", "1")
            await asyncio.wait([receiving])
            assert receiving.cancelled()
            receiving = None
            (message,) = await client.receive("q", wait="20s")
            assert message.deliveries == 1

    check()
