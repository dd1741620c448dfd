"""The rows of the table of calls on their own, as an edge without sessions uses them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from quiver import protocol
from quiver.edge.auth.caller import Caller
from quiver.edge.auth.principal import INTERNAL
from quiver.edge.calls.context import Answer, DirectContext
from quiver.edge.calls.table import CALLS
from quiver.edge.node import Node
from quiver.errors import TopicNotFound
from quiver.model.topic import Acks, TopicSettings
from tests.aio import async_test
from tests.integration.edge_node import config
from tests.integration.native_peer import batch_of

BATCH = batch_of(b"one")
BODY = memoryview(BATCH.head + bytes(BATCH.body))


class Direct:
    """Carries out calls on a node, one by one."""

    def __init__(self, node: Node) -> None:
        self.services = node.services
        caller = Caller(node.services.authority, node.services.clock, INTERNAL)
        self._context = DirectContext(node.services, caller)

    async def __call__(self, request: Any, body: memoryview = memoryview(b"")) -> Answer:  # noqa: B008
        return await CALLS[type(request)].answer(self._context, request, body)


@asynccontextmanager
async def direct(folder: Path) -> AsyncIterator[Direct]:
    (folder / "data").mkdir()
    node = await Node.start(config(folder), listen=False)
    try:
        yield Direct(node)
    finally:
        await node.stop()


@async_test
async def test_a_message_is_published_received_and_acknowledged(tmp_path: Path) -> None:
    async with direct(tmp_path) as call:
        await call(protocol.CreateQueue(name="jobs", topic=TopicSettings()))
        published, _ = await call(protocol.Publish(topic="jobs", partition=0), BODY)
        assert isinstance(published, protocol.Published)
        assert published.base_offset == 0
        received, body = await call(protocol.Receive(subscription="jobs", wait_ms=5000))
        assert isinstance(received, protocol.Received)
        assert sum(map(len, body)) == received.portions[0].size
        portion = received.portions[0]
        settlements = [protocol.Settlement(portion.lease, portion.offsets)]
        settled, _ = await call(protocol.Ack(subscription="jobs", settlements=settlements))
        assert settled == protocol.Settled(stale=[])
        described, _ = await call(protocol.DescribeSubscription(name="jobs"))
        assert isinstance(described, protocol.Subscription)
        assert (described.subscription.ready, described.subscription.leased) == (0, 0)


@async_test
async def test_a_publish_fails_as_it_does_in_a_session(tmp_path: Path) -> None:
    async with direct(tmp_path) as call:
        with pytest.raises(TopicNotFound):
            await call(protocol.Publish(topic="nothing", partition=0), BODY)


@async_test
async def test_a_publish_without_confirmation_is_answered_before_it_is_stored(
    tmp_path: Path,
) -> None:
    async with direct(tmp_path) as call:
        await call(protocol.CreateTopic(name="orders", settings=TopicSettings()))
        request = protocol.Publish(topic="orders", partition=0, acks=Acks.NONE)
        assert await call(request, BODY) == (protocol.Done(), ())
        fetched, body = await call(
            protocol.Fetch(topic="orders", partition=0, offset=0, wait_ms=5000)
        )
        assert isinstance(fetched, protocol.Fetched)
        assert fetched.next_offset == 1
        assert body


@async_test
async def test_an_ack_counts_although_nobody_waits_for_it(tmp_path: Path) -> None:
    async with direct(tmp_path) as call:
        await call(protocol.CreateQueue(name="jobs", topic=TopicSettings()))
        await call(protocol.Publish(topic="jobs", partition=0), BODY)
        received, _ = await call(protocol.Receive(subscription="jobs", wait_ms=5000))
        assert isinstance(received, protocol.Received)
        portion = received.portions[0]
        counted = asyncio.Event()
        call._context.caller.settled = lambda _: counted.set()  # type: ignore[method-assign]
        settlements = [protocol.Settlement(portion.lease, portion.offsets)]
        ack = asyncio.create_task(call(protocol.Ack(subscription="jobs", settlements=settlements)))
        await asyncio.sleep(0)
        ack.cancel()
        await asyncio.wait([ack])
        assert ack.cancelled()
        async with asyncio.timeout(5):
            await counted.wait()
