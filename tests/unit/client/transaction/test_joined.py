"""Transactions over several requests: each says what it reached, and sends nothing twice."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import chain

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from quiver import protocol
from quiver.client import AsyncClient
from quiver.client.producer.delivery import Published
from quiver.client.transaction.joined import JoinedTransaction
from quiver.client.transaction.reference import TransactionReference
from quiver.errors import ConnectionLost, InvalidRequest, QuiverError, StaleReceipt
from quiver.model.envelope import TRANSACTIONAL
from quiver.model.receipt import receipt
from quiver.model.transaction import TransactionId, producer_of
from tests.aio import async_test
from tests.unit.client.scripted_node import Fate, HastyClock, ScriptedDialer
from tests.unit.client.transaction.scripted_coordinator import TOKEN, ScriptedCoordinator, once

REFERENCE = TransactionReference(TransactionId(4096 << 20), 30_000, TOKEN)


@asynccontextmanager
async def scripted() -> AsyncIterator[tuple[JoinedTransaction, ScriptedCoordinator]]:
    node = ScriptedCoordinator()
    node.add_topic("invoices", 2)
    async with AsyncClient(dialer=ScriptedDialer(node), clock=HastyClock()) as client:
        yield JoinedTransaction(client.cluster, REFERENCE), node


def joined(node: ScriptedCoordinator) -> list[list[tuple[str, int]]]:
    return [
        [(one.topic, one.partition) for one in request.participants]
        for request in node.requests
        if isinstance(request, protocol.JoinTransaction)
    ]


@async_test
async def test_a_message_is_the_transactions_and_its_partition_is_told_to_the_coordinator() -> None:
    async with scripted() as (transaction, node):
        published = await transaction.publish("invoices", b"x", partition=1)
        assert published.partition == 1
        (entry,) = node.partitions["invoices"][1].entries
        assert entry.flags == TRANSACTIONAL
        assert (entry.producer_id, entry.producer_epoch) == producer_of(REFERENCE.number)
        assert entry.sequence == -1
        assert joined(node) == [[("invoices", 1)]]
        join = next(one for one in node.requests if isinstance(one, protocol.JoinTransaction))
        assert (join.token, join.timeout_ms) == (TOKEN, 30_000)


@async_test
async def test_lists_and_tables_are_published() -> None:
    async with scripted() as (transaction, node):
        results = await transaction.publish_each("invoices", [b"1", b"2"])
        assert all(isinstance(one, Published) for one in results)
        assert await transaction.publish_table("invoices", pa.table({"payload": [b"3"]})) == 1
        each = await transaction.publish_each("invoices", pa.table({"payload": [b"4"]}))
        assert len(each) == 1
        assert sorted(chain.from_iterable(node.payloads("invoices"))) == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("fate", [Fate.REPLY_LOST, Fate.UNANSWERED, Fate.UNAVAILABLE])
@async_test
async def test_what_may_be_stored_is_not_sent_again(fate: Fate) -> None:
    async with scripted() as (transaction, node):
        node.fate = lambda _: fate
        with pytest.raises(QuiverError):
            await transaction.publish("invoices", b"x", partition=0)
        assert node.payloads("invoices")[0] == [b"x"]
        assert joined(node) == [[("invoices", 0)]], "it may be there"


@async_test
async def test_what_was_refused_is_sent_again() -> None:
    async with scripted() as (transaction, node):
        node.fate = lambda number: Fate.OVERLOADED if number == 1 else Fate.ANSWERED
        await transaction.publish("invoices", b"x", partition=0)
        assert node.payloads("invoices")[0] == [b"x"]


@async_test
async def test_acks_are_not_for_a_request_to_choose() -> None:
    async with scripted() as (transaction, _):
        with pytest.raises(InvalidRequest, match="acks"):
            await transaction.publish("invoices", b"x", acks="none")


@async_test
async def test_receipts_are_held_and_their_partition_is_told_to_the_coordinator() -> None:
    async with scripted() as (transaction, node):
        number = node.topics["invoices"].number
        lease = b"\7\0\0\0" + number.to_bytes(4, "little") + b"\1\0" + bytes(16)
        node.stale.add(9)
        await transaction.ack("billing", [receipt(lease, 1), receipt(lease, 2)])
        assert list(node.held[REFERENCE.number]) == [1, 2]
        assert joined(node) == [[("invoices", 1)]]
        with pytest.raises(StaleReceipt) as caught:
            await transaction.ack("billing", [receipt(lease, 9)])
        assert caught.value.details["stale"] == [[lease, BitMap64([9]).serialize()]]


@async_test
async def test_the_end_is_repeated_and_names_no_partitions() -> None:
    async with scripted() as (transaction, node):
        node.after = once(protocol.EndTransaction, ConnectionLost())
        await transaction.publish("invoices", b"x")
        await transaction.commit()
        ends = [one for one in node.requests if isinstance(one, protocol.EndTransaction)]
        assert [one.participants for one in ends] == [[], []]
        assert node.outcomes == {REFERENCE.number: True}
