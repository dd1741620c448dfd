"""Transactions on one node, over the real protocol: all of it or nothing, and an error for each reason."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from quiver import protocol
from quiver.client import AsyncClient
from quiver.edge.node import Node
from quiver.errors import (
    InvalidRequest,
    PermissionDenied,
    TopicNotFound,
    TransactionError,
    TransactionFenced,
    TransactionTimedOut,
    TransactionTooLarge,
)
from quiver.model.batch import UnstoredBatch
from quiver.model.envelope import TRANSACTIONAL, ProducerStamp, entries_in, seal_batch
from quiver.model.ids import ProducerEpoch, ProducerId, Sequence
from quiver.model.topic import TopicSettings
from quiver.model.transaction import PARTICIPANTS_MAX, TransactionState
from quiver.protocol import Participant
from tests.integration.edge_node import config, edge_test
from tests.integration.native_peer import Peer, batch_of


@asynccontextmanager
async def clients(folder: Path, count: int = 1) -> AsyncIterator[list[AsyncClient]]:
    """A node with topics and a queue, and clients of it."""
    async with node(folder) as url:
        several = [AsyncClient(url) for _ in range(count)]
        try:
            await several[0].create_topic("invoices", partitions=3, exist_ok=True)
            await several[0].create_topic("audit", exist_ok=True)
            await several[0].create_queue("orders", exist_ok=True)
            yield several
        finally:
            for client in several:
                await client.close()


@asynccontextmanager
async def node(folder: Path) -> AsyncIterator[str]:
    (folder / "data").mkdir(exist_ok=True)
    started = await Node.start(config(folder))
    try:
        yield f"quiver://{started.native_address}"
    finally:
        await started.stop()


async def payloads(client: AsyncClient, topic: str) -> list[bytes]:
    async with client.read(topic) as reader:
        return sorted([one async for batch in reader for one in batch["payload"].to_pylist()])


async def ready(client: AsyncClient) -> int:
    return (await client.describe_subscription("orders")).ready


# ---------------------------------------------------------------------- all or nothing


@edge_test
async def test_a_commit_shows_all_of_it_and_finishes_what_it_took(tmp_path: Path) -> None:
    async with clients(tmp_path) as (q,):
        await q.publish_many("orders", [b"1", b"2", b"3"])
        async with q.transaction() as tx:
            for message in await q.receive("orders", 3, wait="10s"):
                await tx.publish("invoices", message.payload, key=message.payload)
                await tx.publish("audit", message.payload)
                await tx.ack(message)
            assert await payloads(q, "invoices") == []
        assert await payloads(q, "invoices") == await payloads(q, "audit") == [b"1", b"2", b"3"]
        info = await q.describe_subscription("orders")
        assert (info.ready, info.leased) == (0, 0)
        assert tx.state is TransactionState.COMMITTED


@edge_test
async def test_an_abort_shows_nothing_and_returns_what_it_took(tmp_path: Path) -> None:
    async with clients(tmp_path) as (q,):
        await q.publish("orders", b"1")
        tx = await q.transaction()
        (message,) = await q.receive("orders", wait="10s")
        await tx.publish("invoices", b"1")
        await tx.ack(message)
        await tx.hold()
        await tx.abort()
        (again,) = await q.receive("orders", wait="10s")
        assert again.deliveries == 1
        await q.publish("invoices", b"after")
        assert await payloads(q, "invoices") == [b"after"]
        assert tx.state is TransactionState.ABORTED


@edge_test
async def test_what_it_received_is_leased_until_the_program_comes_to_it(tmp_path: Path) -> None:
    async with clients(tmp_path) as [client]:
        await client.publish_many("orders", [b"a", b"b"])
        async with client.transaction() as transaction:
            for message in await client.receive("orders", 2, visibility="2s"):
                others = await client.receive("orders", wait="1.5s")  # the work on it takes so long
                assert others == []
                await transaction.ack(message)
        assert await ready(client) == 0


@edge_test
async def test_a_short_lease_is_kept_from_the_moment_it_is_received(tmp_path: Path) -> None:
    async with clients(tmp_path) as [client]:
        await client.publish("orders", b"a")
        async with client.transaction() as transaction:
            (message,) = await client.receive("orders", visibility="500ms")
            assert await client.receive("orders", wait="1.5s") == []  # the work on it takes so long
            await transaction.ack(message)
        assert await ready(client) == 0


@edge_test
async def test_both_outcomes_are_kept_over_a_restart(tmp_path: Path) -> None:
    async with clients(tmp_path) as (q,):
        async with q.transaction() as one:
            await one.publish("audit", b"committed")
        other = await q.transaction()
        await other.publish("audit", b"aborted")
        await other.abort()
    async with clients(tmp_path) as (q,):
        assert await payloads(q, "audit") == [b"committed"]
        assert await q.describe_transaction(one.id) is TransactionState.COMMITTED
        assert await q.describe_transaction(other.id) is TransactionState.ABORTED
        assert await q.describe_transaction(other.id + 1) is TransactionState.UNKNOWN


# ---------------------------------------------------------------------- what is refused


@edge_test
async def test_a_transaction_past_its_limit_is_aborted_and_readers_go_on(tmp_path: Path) -> None:
    async with clients(tmp_path) as (q,):
        tx = await q.transaction(timeout="1s")
        await tx.publish("audit", b"late")
        await q.publish("audit", b"behind it")
        assert await payloads(q, "audit") == []
        await asyncio.sleep(1.1)
        with pytest.raises(TransactionTimedOut):
            await tx.commit()
        assert await payloads(q, "audit") == [b"behind it"]


@edge_test
async def test_of_two_clients_with_one_name_the_first_is_fenced(tmp_path: Path) -> None:
    async with clients(tmp_path, 2) as (first, second):
        old = await first.transaction(name="billing-7")
        await old.publish("audit", b"old")
        new = await second.transaction(name="billing-7")
        await new.publish("audit", b"new")
        with pytest.raises(TransactionFenced):
            await old.commit()
        await new.commit()
        assert await payloads(first, "audit") == [b"new"]


@edge_test
async def test_a_topic_that_is_deleted_before_a_publish_fails_the_commit(tmp_path: Path) -> None:
    async with clients(tmp_path) as (q,):
        tx = await q.transaction()
        await tx.publish("audit", b"1")
        await tx.publish("invoices", b"1", key="a")
        await q.delete_topic("invoices")
        with pytest.raises(TopicNotFound):
            await tx.commit()
        assert await payloads(q, "audit") == []
        assert tx.state is TransactionState.ABORTED


@edge_test
async def test_a_topic_that_is_deleted_after_a_publish_holds_up_nothing(tmp_path: Path) -> None:
    async with clients(tmp_path) as (q,):
        tx = await q.transaction()
        await tx.publish("audit", b"1")
        await tx.publish_table("invoices", pa.RecordBatch.from_pydict({"payload": [b"1"]}))
        async with q.read("invoices", follow=True, isolation="uncommitted") as reader:
            await anext(aiter(reader))
        await q.delete_topic("invoices")
        await tx.commit()
        assert await payloads(q, "audit") == [b"1"]


# ---------------------------------------------------------------------- over the wire


class Wire:
    """A connection without a client, and a producer of transactions that was begun over it."""

    def __init__(self, peer: Peer, begun: protocol.TransactionsBegun) -> None:
        self._peer = peer
        self.token = begun.token
        self.transaction = begun.producer_id << 20

    async def answer(
        self, request: protocol.AnyRequest, batch: UnstoredBatch | None = None
    ) -> protocol.AnyReply:
        body = () if batch is None else (batch.head, batch.body)
        reply, _ = await self._peer.answer(self._peer.request(request, body))
        return reply

    def send(self, request: protocol.AnyRequest, batch: UnstoredBatch | None = None) -> int:
        return self._peer.request(request, () if batch is None else (batch.head, batch.body))

    async def reply(self, request_id: int) -> protocol.AnyReply:
        return (await self._peer.answer(request_id))[0]

    async def next_reply(self) -> protocol.AnyReply:
        return (await self._peer.reply())[0]

    async def create(self, topic: str) -> None:
        settings = TopicSettings(partitions=1)
        await self.answer(protocol.CreateTopic(name=topic, settings=settings))

    def after(self, requests: list[int]) -> protocol.EndTransactionAfter:
        return protocol.EndTransactionAfter(
            transaction=self.transaction,
            token=self.token,
            is_commit=True,
            participants=[Participant("invoices", 0)],
            after=requests,
        )

    async def read(self, request: protocol.Fetch) -> list[bytes]:
        _, body = await self._peer.answer(self._peer.request(request))
        batches = [entry.record_batch() for entry in entries_in(body)]
        return [payload for batch in batches for payload in batch["payload"].to_pylist()]

    async def end(self, *, is_commit: bool = True, **given: object) -> protocol.AnyReply:
        fields = {"transaction": self.transaction, "token": self.token, **given}
        return await self.answer(protocol.EndTransaction(is_commit=is_commit, **fields))  # type: ignore[arg-type]


@asynccontextmanager
async def wire(folder: Path, name: str | None = None) -> AsyncIterator[Wire]:
    (folder / "data").mkdir(exist_ok=True)
    started = await Node.start(config(folder))
    assert started.native_address is not None
    try:
        peer = await Peer.connect(started.native_address)
        reply, _ = await peer.answer(peer.request(protocol.BeginTransactions(name=name)))
        assert isinstance(reply, protocol.TransactionsBegun)
        yield Wire(peer, reply)
        await peer.close()
    finally:
        await started.stop()


def code_of(reply: protocol.AnyReply) -> str:
    assert isinstance(reply, protocol.Failed), reply
    return reply.code


def transactional(one: Wire, sequence: int) -> UnstoredBatch:
    batch = batch_of(b"x")
    stamp = ProducerStamp(ProducerId(one.transaction >> 20), ProducerEpoch(0), Sequence(sequence))
    return seal_batch(batch.body, batch.count, batch.columns, stamp, TRANSACTIONAL)


@edge_test
async def test_an_end_that_comes_after_publishes_waits_for_them(tmp_path: Path) -> None:
    async with wire(tmp_path) as one:
        await one.create("invoices")
        asked = [one.send(protocol.Publish(topic="invoices", partition=0), transactional(one, 0))]
        asked.append(one.send(one.after(asked)))
        ended = await one.reply(asked[1])
        assert isinstance(ended, protocol.TransactionEnded)
        assert ended.is_committed
        assert isinstance(await one.reply(asked[0]), protocol.Published)
        assert await one.read(protocol.Fetch(topic="invoices", partition=0, offset=0)) == [b"x"]
        assert isinstance(await one.end(), protocol.TransactionEnded)


@pytest.mark.parametrize("sequence", [0, 1])
@edge_test
async def test_an_end_that_comes_after_something_that_failed_ends_nothing(
    tmp_path: Path, sequence: int
) -> None:
    """A publish that is refused, or one that never was: the transaction is open as before."""
    async with wire(tmp_path) as one:
        await one.create("invoices")
        publish = protocol.Publish(topic="invoices", partition=0)
        asked = [one.send(publish, transactional(one, sequence)), *([] if sequence else [1_000])]
        answer = await one.reply(one.send(one.after(asked)))
        assert isinstance(answer, protocol.TransactionInfo)
        assert answer.state == TransactionState.OPEN
        assert isinstance(await one.end(is_commit=False), protocol.TransactionEnded)
        assert await one.read(protocol.Fetch(topic="invoices", partition=0, offset=0)) == []


@edge_test
async def test_answers_that_wait_for_an_end_leave_before_it(tmp_path: Path) -> None:
    async with wire(tmp_path) as one:
        await one.create("invoices")
        publish = protocol.Publish(topic="invoices", partition=0)
        asked = [one.send(publish, transactional(one, number)) for number in range(3)]
        asked.append(one.send(one.after(asked)))
        assert [(await one.next_reply()).id for _ in asked] == asked


@edge_test
async def test_an_end_that_comes_after_others_needs_the_token_all_the_same(tmp_path: Path) -> None:
    async with wire(tmp_path) as one:
        one.token = b"forged"
        for after in ([], [1_000]):
            reply = await one.reply(one.send(one.after(after)))
            assert code_of(reply) == PermissionDenied.code


@edge_test
async def test_a_repeated_end_has_the_same_answer(tmp_path: Path) -> None:
    async with wire(tmp_path) as one:
        first = await one.end()
        assert isinstance(first, protocol.TransactionEnded)
        again = await one.end(age_ms=100_000)
        assert isinstance(again, protocol.TransactionEnded)
        assert (again.is_committed, again.is_complete) == (True, True)
        assert code_of(await one.end(is_commit=False)) == TransactionError.code


@edge_test
async def test_more_partitions_than_the_bound_are_refused(tmp_path: Path) -> None:
    many = [Participant("audit", index) for index in range(PARTICIPANTS_MAX + 1)]
    async with wire(tmp_path) as one:
        assert code_of(await one.end(participants=many)) == TransactionTooLarge.code
        assert isinstance(await one.end(is_commit=False), protocol.TransactionEnded)


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001, 1 << 60])
@edge_test
async def test_a_time_limit_out_of_bounds_is_refused(timeout_ms: int, tmp_path: Path) -> None:
    async with wire(tmp_path) as one:
        assert code_of(await one.end(timeout_ms=timeout_ms)) == InvalidRequest.code
        joined = protocol.JoinTransaction(
            transaction=one.transaction, token=one.token, timeout_ms=timeout_ms
        )
        assert code_of(await one.answer(joined)) == InvalidRequest.code


@pytest.mark.parametrize("transaction", [-1, 1 << 63, (1 << 64) - 1])
@edge_test
async def test_what_is_no_id_is_refused(transaction: int, tmp_path: Path) -> None:
    async with wire(tmp_path) as one:
        request = protocol.DescribeTransaction(transaction=transaction)
        assert code_of(await one.answer(request)) == InvalidRequest.code
        assert code_of(await one.end(transaction=transaction)) == InvalidRequest.code


@edge_test
async def test_nobody_ends_what_they_did_not_begin(tmp_path: Path) -> None:
    async with wire(tmp_path, name="billing") as one:
        for given in (
            {"token": b"", "name": "billing"},
            {"token": one.token[:-1] + b"x", "name": "billing"},
            {"transaction": one.transaction + (1 << 20), "name": "billing"},
            {"name": None},
            {"name": "other"},
        ):
            assert code_of(await one.end(**given)) == PermissionDenied.code
        assert isinstance(await one.end(name="billing"), protocol.TransactionEnded)


@edge_test
async def test_clients_cannot_speak_as_nodes(tmp_path: Path) -> None:
    async with wire(tmp_path) as one:
        told = protocol.CloseTransactions(
            topic="audit", partition=0, outcomes={one.transaction: True}
        )
        asked = protocol.ResolveTransactions(transactions=[one.transaction])
        assert code_of(await one.answer(told)) == PermissionDenied.code
        assert code_of(await one.answer(asked)) == PermissionDenied.code


@edge_test
async def test_a_participant_that_never_was_is_forgotten(tmp_path: Path) -> None:
    async with wire(tmp_path) as one:
        ended = await one.end(participants=[Participant("nothing", 0), Participant("x" * 300, -1)])
        assert isinstance(ended, protocol.TransactionEnded)
        assert (ended.is_committed, ended.is_complete) == (True, True)


@edge_test
async def test_a_client_that_is_gone_holds_readers_back_until_its_limit(tmp_path: Path) -> None:
    async with wire(tmp_path) as one:
        await one.answer(protocol.CreateTopic(name="audit", settings=TopicSettings()))
        joined = protocol.JoinTransaction(
            transaction=one.transaction, token=one.token, timeout_ms=1500
        )
        assert isinstance(await one.answer(joined), protocol.Done)
        stamp = ProducerStamp(ProducerId(one.transaction >> 20), ProducerEpoch(0), Sequence(0))
        plain = batch_of(b"never")
        batch = seal_batch(plain.body, 1, plain.columns, stamp, TRANSACTIONAL)
        publish = protocol.Publish(topic="audit", partition=0)
        assert isinstance(await one.answer(publish, batch), protocol.Published)
        await one.answer(publish, batch_of(b"behind"))
        fetch = protocol.Fetch(topic="audit", partition=0, offset=0, wait_ms=0)
        assert await one.read(fetch) == []
        waiting = msgspec.structs.replace(fetch, wait_ms=30_000)
        assert await one.read(waiting) == [b"behind"]


@edge_test
async def test_a_join_after_the_end_has_its_error(tmp_path: Path) -> None:
    async with wire(tmp_path) as one:
        joined = protocol.JoinTransaction(transaction=one.transaction, token=one.token)
        assert isinstance(await one.answer(joined), protocol.Done)
        await one.end(is_commit=False)
        assert code_of(await one.answer(joined)) == "transaction_aborted"
