"""Acknowledgements that wait for a transaction, on a node: nothing but its end decides about them.

Here the partition is told directly what became of a transaction, as a coordinator tells it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pyroaring import BitMap64

from quiver import protocol
from quiver.client import AsyncClient
from quiver.client.consumer.received import ReceivedMessage, settlements
from quiver.edge.node import Node
from quiver.errors import InvalidRequest, StaleReceipt
from quiver.model.transaction import TransactionId
from quiver.protocol import Hold
from tests.integration.client_node import ProcessNode
from tests.integration.edge_node import config, edge_test
from tests.integration.native_peer import Peer

ONE, OTHER = TransactionId(7), TransactionId(8)


class Place:
    """A node, and a client of it."""

    def __init__(self, node: Node, url: str, client: AsyncClient) -> None:
        self.q = client
        self.url = url
        assert node.native_address is not None
        self.address = node.native_address
        self._node = node

    async def close(self, transaction: TransactionId, *, is_committed: bool) -> None:
        """Tell the partition what became of a transaction."""
        partition = await self._node.services.broker.publisher.partition("jobs", 0)
        assert partition.state is not None
        stored = partition.state.close_transactions({transaction: is_committed})
        if stored is not None:
            await asyncio.shield(stored)


@asynccontextmanager
async def place(folder: Path) -> AsyncIterator[Place]:
    (folder / "data").mkdir(exist_ok=True)
    node = await Node.start(config(folder))
    try:
        url = f"quiver://{node.native_address}"
        async with AsyncClient(url) as client:
            yield Place(node, url, client)
    finally:
        await node.stop()


async def hold(
    q: AsyncClient, messages: list[ReceivedMessage], transaction: TransactionId = ONE
) -> None:
    request = Hold(subscription="jobs", settlements=settlements(messages), transaction=transaction)
    await q._settle(request)  # type: ignore[arg-type]


@edge_test
async def test_what_is_held_does_not_go_to_others_when_the_lease_is_over(tmp_path: Path) -> None:
    async with place(tmp_path) as at:
        await at.q.create_queue("jobs", visibility="200ms", backoff={"min": 0})
        await at.q.publish_many("jobs", [b"1", b"2"])
        first, second = await at.q.receive("jobs", 2, consumer="ann")
        await hold(at.q, [first])
        (again,) = await at.q.receive("jobs", 9, wait=20, consumer="bob")
        assert (again.payload, again.deliveries) == (second.payload, 2)
        await again.ack()
        assert await at.q.receive("jobs", 9, wait=0.5, consumer="bob") == []
        with pytest.raises(StaleReceipt):
            await hold(at.q, [second])
        with pytest.raises(StaleReceipt):
            await at.q.ack("jobs", [first])
        await hold(at.q, [first])


@edge_test
async def test_a_commit_is_for_good_and_an_abort_brings_the_message_back_uncounted(
    tmp_path: Path,
) -> None:
    async with place(tmp_path) as at:
        await at.q.create_queue("jobs")
        await at.q.publish_many("jobs", [b"1", b"2"])
        first, second = await at.q.receive("jobs", 2)
        await hold(at.q, [first], ONE)
        await hold(at.q, [second], OTHER)
        waiting = asyncio.create_task(at.q.receive("jobs", 9, wait=20))
        await at.close(ONE, is_committed=True)
        await at.close(OTHER, is_committed=False)
        (again,) = await waiting
        assert (again.payload, again.deliveries) == (second.payload, 1)
        await again.ack()
    async with place(tmp_path) as at:
        info = await at.q.describe_subscription("jobs")
        assert (info.ready, info.leased, info.unseen) == (0, 0, 0)
        await at.close(ONE, is_committed=False)
        assert await at.q.receive("jobs", 9) == []


@edge_test
async def test_a_consumer_that_is_gone_does_not_take_along_what_it_has_held(
    tmp_path: Path,
) -> None:
    async with place(tmp_path) as at:
        await at.q.create_queue("jobs", visibility="1s")
        await at.q.publish_many("jobs", [b"1", b"2"])
        async with AsyncClient(at.url) as leaving:
            messages = leaving.consume("jobs")
            got = [await anext(messages) for _ in range(2)]
            await hold(at.q, got[:1])
        (again,) = await at.q.receive("jobs", 9, wait=20)
        assert again.payload == got[1].payload
        assert await at.q.receive("jobs", 9, wait=1.5) == []
        await at.close(ONE, is_committed=False)
        (back,) = await at.q.receive("jobs", 9, wait=20)
        assert (back.payload, back.deliveries) == (got[0].payload, 1)


@edge_test
async def test_a_consumer_that_dies_does_not_take_along_what_it_has_held(tmp_path: Path) -> None:
    async with place(tmp_path) as at:
        await at.q.create_queue("jobs")
        await at.q.publish_many("jobs", [b"1", b"2"])
        peer = await Peer.connect(at.address)
        session = peer.request(protocol.Consume(subscription="jobs", window=2))
        assert isinstance((await peer.answer(session))[0], protocol.Consuming)
        received, _ = await peer.answer(session)
        assert isinstance(received, protocol.Received)
        (portion,) = received.portions
        taken = [protocol.Settlement(portion.lease, portion.offsets)]
        await peer.ask(protocol.Progress(session=session, started=taken), expect=protocol.Settled)
        first = [protocol.Settlement(portion.lease, BitMap64([0]).serialize())]
        request = Hold(subscription="jobs", settlements=first, transaction=ONE)
        assert (await peer.ask(request, expect=protocol.Settled)).stale == []
        await peer.reset()
        (again,) = await at.q.receive("jobs", 9, wait=20)
        assert (again.payload, again.deliveries) == (b"2", 2)
        assert (await at.q.describe_subscription("jobs")).leased == 2
        await at.close(ONE, is_committed=False)
        (back,) = await at.q.receive("jobs", 9, wait=20)
        assert (back.payload, back.deliveries) == (b"1", 1)


@edge_test
async def test_the_next_of_a_key_comes_when_the_one_before_is_committed(tmp_path: Path) -> None:
    async with place(tmp_path) as at:
        await at.q.create_queue("jobs", ordering="key", visibility="200ms")
        await at.q.publish_many("jobs", [{"payload": b"%d" % n, "key": "a"} for n in range(2)])
        (first,) = await at.q.receive("jobs", 9)
        await hold(at.q, [first])
        assert await at.q.receive("jobs", 9, wait=0.5) == []
        waiting = asyncio.create_task(at.q.receive("jobs", 9, wait=20))
        await at.close(ONE, is_committed=True)
        assert [one.payload for one in await waiting] == [b"1"]


@edge_test
async def test_what_is_no_transaction_is_refused(tmp_path: Path) -> None:
    async with place(tmp_path) as at:
        await at.q.create_queue("jobs")
        await at.q.publish("jobs", b"1")
        messages = await at.q.receive("jobs", 9)
        for number in (-1, 1 << 63):
            with pytest.raises(InvalidRequest, match="not the id of a transaction"):
                await hold(at.q, messages, TransactionId(number))


@pytest.mark.process
@edge_test
async def test_what_was_held_is_held_after_the_node_was_killed(tmp_path: Path) -> None:
    node = ProcessNode(tmp_path / "data")
    try:
        await asyncio.to_thread(node.start)
        async with AsyncClient(node.url) as q:
            await q.create_queue("jobs", visibility="300ms", backoff={"min": 0})
            await q.publish_many("jobs", [b"1", b"2"])
            first, second = await q.receive("jobs", 2)
            await hold(q, [first])
            await asyncio.to_thread(node.kill)
            await asyncio.to_thread(node.start)
            (again,) = await q.receive("jobs", 9, wait=20)
            assert again.payload == second.payload
            await again.ack()
            assert await q.receive("jobs", 9, wait=0.5) == []
            await hold(q, [first])
            assert (await q.describe_subscription("jobs")).leased == 1
    finally:
        node.close()
