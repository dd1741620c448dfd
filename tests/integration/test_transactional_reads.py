"""Batches of transactions over a real socket: who sees them, and when."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from quiver import AsyncClient, Client, protocol
from quiver.broker.partition.partition import Partition
from quiver.errors import InvalidRequest, MessageNotFound, TransactionAborted
from quiver.model.batch import StoredBatch, UnstoredBatch
from quiver.model.builder import BatchBuilder
from quiver.model.envelope import TRANSACTIONAL, ProducerStamp, seal_batch
from quiver.model.ids import NO_SEQUENCE, Offset, PartitionIndex, ProducerEpoch, ProducerId
from quiver.model.message_id import MessageId
from quiver.model.transaction import TransactionId, producer_of, transaction_id
from tests.integration.client_node import ProcessNode
from tests.integration.edge_node import Running, edge_test, running
from tests.integration.native_peer import Peer

TX = transaction_id(ProducerId(7), ProducerEpoch(0))


def batch_of(*payloads: bytes, **columns: Any) -> UnstoredBatch:
    builder = BatchBuilder()
    for payload in payloads:
        builder.add(payload, **columns)
    return builder.build()


def in_transaction(batch: UnstoredBatch, transaction: TransactionId = TX) -> UnstoredBatch:
    stamp = ProducerStamp(*producer_of(transaction), NO_SEQUENCE)
    return seal_batch(batch.body, batch.count, batch.columns, stamp, TRANSACTIONAL)


async def _partition(run: Running, topic: str = "orders") -> Partition:
    return await run.node.services.broker.publisher.partition(topic, 0)


async def _end(run: Running, *, commit: bool, transaction: TransactionId = TX) -> None:
    await (await _partition(run)).close_transactions({transaction: commit})


def _client(run: Running) -> AsyncClient:
    return AsyncClient(f"quiver://{run.address}")


async def _read(client: AsyncClient, **how: Any) -> list[tuple[int, bytes]]:
    """Offsets and payloads, which batches and messages agree on."""
    table = await client.read("orders", **how).table()
    rows = list(zip(table["offset"].to_pylist(), table["payload"].to_pylist(), strict=True))
    messages = [(one.offset, one.payload) async for one in client.read("orders", **how).messages()]
    assert messages == rows
    return rows


async def _mixed(peer: Peer) -> None:
    """One message before, two in the transaction, and one after each of them."""
    await peer.store("orders", batch_of(b"before"))
    await peer.store("orders", in_transaction(batch_of(b"a")))
    await peer.store("orders", batch_of(b"between"))
    await peer.store("orders", in_transaction(batch_of(b"b")))
    await peer.store("orders", batch_of(b"after"))


@edge_test
async def test_an_open_transaction_is_seen_by_nobody_and_a_committed_one_by_all_in_order(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as run, _client(run) as client:
        peer = await run.peer()
        await client.create_queue("orders")
        await _mixed(peer)
        assert await _read(client) == [(0, b"before")]
        received = await client.receive("orders", 10)
        assert [one.payload for one in received] == [b"before"]
        assert (await client.describe_topic("orders")).partitions[0].next_offset == 1
        await _end(run, commit=True)
        expected = [b"before", b"a", b"between", b"b", b"after"]
        assert [payload for _, payload in await _read(client)] == expected
        rest = await client.receive("orders", 10, wait=5)
        assert [one.payload for one in rest] == expected[1:]


@edge_test
async def test_an_aborted_transaction_is_seen_by_nobody_and_holds_nobody_up(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as run, _client(run) as client:
        peer = await run.peer()
        await client.create_queue("orders")
        await _mixed(peer)
        await _end(run, commit=False)
        assert await _read(client) == [(0, b"before"), (2, b"between"), (4, b"after")]
        received = await client.receive("orders", 10)
        assert [one.payload for one in received] == [b"before", b"between", b"after"]
        await client.ack("orders", received)
        progress = (await client.describe_subscription("orders")).partitions[0]
        assert (progress.lag, progress.committed) == (0, progress.end)


@pytest.mark.parametrize(
    "settings",
    [
        {"filter": "key != 'x'"},
        {"ordering": "key"},
        {"ordering": "partition"},
        {"fairness": "key"},
        {},
    ],
    ids=["filter", "key order", "partition order", "fairness", "plain"],
)
@pytest.mark.parametrize("is_behind", [False, True], ids=["follows", "is behind"])
def test_every_kind_of_subscription_passes_over_what_was_aborted(
    tmp_path: Path, settings: dict[str, Any], is_behind: bool
) -> None:
    @edge_test
    async def check() -> None:
        async with running(tmp_path) as run, _client(run) as client:
            peer = await run.peer()
            await client.create_topic("orders")
            if not is_behind:
                await client.create_subscription("work", ["orders"], **settings)
            await peer.store("orders", batch_of(b"before", key=b"k"))
            await peer.store("orders", in_transaction(batch_of(b"a", key=b"k", priority=9)))
            await peer.store("orders", batch_of(b"after", key=b"k"))
            await _end(run, commit=False)
            if is_behind:
                await client.create_subscription("work", ["orders"], start="earliest", **settings)
            found: list[bytes] = []
            while len(found) < 2:
                for message in await client.receive("work", 10, wait=5):
                    found.append(message.payload)
                    await message.ack()
            assert found == [b"before", b"after"]
            assert await client.receive("work", 10) == []

    check()


@edge_test
async def test_a_reader_that_follows_goes_on_when_the_transaction_has_ended(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as run, _client(run) as client:
        peer = await run.peer()
        await client.create_topic("orders")
        await _mixed(peer)
        reader = client.read("orders", follow=True)
        messages = reader.messages()
        assert (await anext(messages)).payload == b"before"
        following = asyncio.ensure_future(anext(messages))
        done, _ = await asyncio.wait([following], timeout=0.1)
        assert not done
        await _end(run, commit=False)
        assert (await following).payload == b"between"
        assert (await anext(messages)).payload == b"after"
        await peer.store("orders", batch_of(b"later"))
        assert (await anext(messages)).payload == b"later"
        await reader.close()


@edge_test
async def test_a_read_that_meets_nothing_but_aborted_messages_ends(tmp_path: Path) -> None:
    async with running(tmp_path) as run, _client(run) as client:
        peer = await run.peer()
        await client.create_topic("orders")
        for _ in range(3):
            await peer.store("orders", in_transaction(batch_of(b"a", b"b")))
        await _end(run, commit=False)
        assert await _read(client) == []
        assert await _read(client, start=1, end=3) == []


@edge_test
async def test_uncommitted_reads_see_what_is_open_or_aborted_but_no_markers(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as run, _client(run) as client:
        peer = await run.peer()
        await client.create_topic("orders")
        await _mixed(peer)
        expected = [b"before", b"a", b"between", b"b", b"after"]
        everything = await _read(client, isolation="uncommitted")
        assert [payload for _, payload in everything] == expected
        await _end(run, commit=False)
        await peer.store("orders", batch_of(b"last"))
        everything = await _read(client, isolation="uncommitted")
        assert [payload for _, payload in everything] == [*expected, b"last"]
        assert everything[-1][0] == 6  # the marker has an offset


@edge_test
async def test_another_isolation_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as run, _client(run) as client:
        await client.create_topic("orders")
        with pytest.raises(InvalidRequest, match="isolation"):
            client.read("orders", isolation="serializable")
        peer = await run.peer()
        for request in (
            protocol.Fetch(topic="orders", partition=0, offset=0, isolation="none"),
            protocol.FindOffset(topic="orders", partition=0, at="latest", isolation="none"),
        ):
            assert isinstance(await peer.refusal(peer.request(request)), InvalidRequest)


@edge_test
async def test_a_message_of_a_transaction_is_found_by_id_once_it_counts(tmp_path: Path) -> None:
    async with running(tmp_path) as run, _client(run) as client:
        peer = await run.peer()
        info = await client.create_topic("orders")
        await peer.store("orders", in_transaction(batch_of(b"a")))
        entries = await (await _partition(run)).log.read(Offset(0))
        found = str(_message_id(info, entries[0]))
        with pytest.raises(MessageNotFound):
            await client.message_status("orders", found)
        await _end(run, commit=True)
        assert (await client.message_status("orders", found)).message is not None
        marker = (await (await _partition(run)).log.read(Offset(1)))[0]
        with pytest.raises(MessageNotFound):
            await client.message_status("orders", str(_message_id(info, marker)))


def _message_id(info: protocol.TopicInfo, entry: StoredBatch) -> MessageId:
    return MessageId(entry.append_time, info.number, PartitionIndex(0), entry.base_offset)


@edge_test
async def test_a_batch_that_comes_after_the_abort_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        peer = await run.peer()
        await peer.create("orders")
        await peer.store("orders", in_transaction(batch_of(b"a")))
        await _end(run, commit=False)
        refusal = await peer.refusal(peer.publish("orders", in_transaction(batch_of(b"late"))))
        assert isinstance(refusal, TransactionAborted)


@edge_test
async def test_small_transactions_are_read_with_their_own_offsets(tmp_path: Path) -> None:
    """Many entries with gaps between them become few batches, and each row keeps its offset."""
    async with running(tmp_path) as run, _client(run) as client:
        peer = await run.peer()
        await client.create_topic("orders")
        for number in range(20):
            transaction = transaction_id(ProducerId(7), ProducerEpoch(number))
            batch = batch_of(str(number).encode())
            await peer.store("orders", in_transaction(batch, transaction))
            await _end(run, commit=number % 3 > 0, transaction=transaction)
        expected = [(2 * number, str(number).encode()) for number in range(20) if number % 3]
        assert await _read(client) == expected
        assert await _read(client, start=5, end=30) == [
            (offset, payload) for offset, payload in expected if 5 <= offset < 30
        ]
        assert len([batch async for batch in client.read("orders")]) < 4


@edge_test
async def test_a_restart_between_batch_and_marker_changes_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as run, _client(run) as client:
        await client.create_queue("orders")
        await _mixed(await run.peer())
        assert len(await client.receive("orders", 10)) == 1
    async with running(tmp_path) as run, _client(run) as client:
        assert await _read(client) == [(0, b"before")]
        await _end(run, commit=False)
        assert await _read(client) == [(0, b"before"), (2, b"between"), (4, b"after")]
    async with running(tmp_path) as run, _client(run) as client:
        assert await _read(client) == [(0, b"before"), (2, b"between"), (4, b"after")]
        received = await client.receive("orders", 10, wait=5)
        assert {one.payload for one in received} <= {b"before", b"between", b"after"}
        assert {one.payload for one in received} >= {b"between", b"after"}


@pytest.mark.process
def test_a_node_that_is_killed_between_batch_and_marker_keeps_the_transaction_open(
    tmp_path: Path,
) -> None:
    node = ProcessNode(tmp_path / "data")
    try:
        node.start()
        with Client(node.url) as client:
            client.create_queue("orders")
            client.publish("orders", b"before")
            with client.transaction() as transaction:
                transaction.publish("orders", b"in").result()
                client.publish("orders", b"after")
                node.kill()
                node.start()
                assert [one.payload for one in client.read("orders").messages()] == [b"before"]
            node.kill()
            node.start()
            expected = [b"before", b"in", b"after"]
            assert [one.payload for one in client.read("orders").messages()] == expected
            got = [one.payload for one in client.receive("orders", 10, wait=10)]
            assert got == expected
    finally:
        node.close()


@edge_test
async def test_a_child_waits_for_a_transaction_that_is_open_in_its_parent(tmp_path: Path) -> None:
    async with running(tmp_path) as run, _client(run) as client:
        peer = await run.peer()
        await client.create_queue("orders", ordering="key")
        await peer.store("orders", batch_of(b"0", key=b"k"))
        await peer.store("orders", in_transaction(batch_of(b"1", key=b"k")))
        await client.split_partition("orders", 0)
        for partition, payload in ((0, b"2"), (1, b"3")):
            await peer.store("orders", batch_of(payload, key=b"k"), partition=partition)
        first = await client.receive("orders", 10, wait=1)
        assert [one.payload for one in first] == [b"0"]
        await client.ack("orders", first)
        assert await client.receive("orders", 10) == []
        assert [one.payload async for one in client.read("orders", partition=0).messages()] == [
            b"0"
        ]
        await _end(run, commit=True)
        got: list[bytes] = []
        while len(got) < 3:
            for message in await client.receive("orders", 10, wait=5):
                got.append(message.payload)
                await message.ack()
        assert sorted(got) == [b"1", b"2", b"3"]
        assert got.index(b"1") < got.index(b"3")
