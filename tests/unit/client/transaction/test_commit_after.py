"""A commit that is sent with the last messages: the node decides when it has confirmed them, or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from quiver import protocol
from quiver.client import AsyncClient
from quiver.errors import (
    ConnectionLost,
    TopicNotFound,
    TransactionFenced,
    TransactionInDoubt,
    UnknownCall,
)
from quiver.model.transaction import TransactionState
from tests.aio import async_test
from tests.unit.client.scripted_node import Fate, until
from tests.unit.client.transaction.scripted_coordinator import ScriptedCoordinator, always, once
from tests.unit.client.transaction.test_transaction import ends, scripted


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[AsyncClient, ScriptedCoordinator]]:
    """A client that has published to the partition before, in a transaction."""
    async with scripted() as (client, node, _):
        async with client.transaction() as tx:
            await tx.publish("invoices", b"first")
        node.requests.clear()
        node.partitions["invoices"][0].entries.clear()
        node.outcomes.clear()
        node.publishes = 0
        yield client, node


def kinds(node: ScriptedCoordinator) -> list[type[protocol.EndTransaction]]:
    return [type(one) for one in ends(node)]


@async_test
async def test_it_is_sent_before_anything_is_confirmed_and_names_what_is_not() -> None:
    async with connected() as (client, node):
        tx = await client.transaction()
        await tx.publish("invoices", b"x")
        node.open.clear()
        commit = asyncio.create_task(tx.commit())
        await until(lambda: bool(ends(node)))
        (end,) = ends(node)
        assert isinstance(end, protocol.EndTransactionAfter)
        published = [one.id for one in node.requests if isinstance(one, protocol.Publish)]
        assert sorted(end.after) == published
        node.open.set()
        await commit
        assert tx.state is TransactionState.COMMITTED
        assert len(ends(node)) == 1


@async_test
async def test_what_is_confirmed_already_needs_no_other_request() -> None:
    async with connected() as (client, node):
        async with client.transaction() as tx:
            await (await tx.publish("invoices", b"x"))
        assert kinds(node) == [protocol.EndTransaction]


@async_test
async def test_a_message_that_is_refused_at_first_is_stored_before_the_commit() -> None:
    async with connected() as (client, node):
        node.fate = lambda number: Fate.OVERLOADED if number == 1 else Fate.ANSWERED
        async with client.transaction() as tx:
            await tx.publish("invoices", b"x")
        assert kinds(node) == [protocol.EndTransactionAfter, protocol.EndTransaction]
        assert isinstance(node.requests[-2], protocol.Publish)
        assert node.payloads("invoices") == [[b"x"]]
        assert tx.state is TransactionState.COMMITTED


@async_test
async def test_a_lease_that_has_ended_keeps_it_from_being_committed() -> None:
    async with connected() as (client, node):
        await client.publish("orders", b"1")
        (message,) = await client.receive("orders")
        node.stale.add(0)
        tx = await client.transaction()
        await tx.publish("invoices", b"x")
        tx.ack(message)
        with pytest.raises(Exception, match="lease"):
            await tx.commit()
        assert node.outcomes == {tx.id: False}


@async_test
async def test_an_older_node_is_asked_once_for_each_connection() -> None:
    async with connected() as (client, node):
        node.before = always(protocol.EndTransactionAfter, UnknownCall())
        for _ in range(3):
            async with client.transaction() as tx:
                await tx.publish("invoices", b"x")
            assert tx.state is TransactionState.COMMITTED
        assert kinds(node) == [protocol.EndTransactionAfter, *[protocol.EndTransaction] * 3]


@async_test
async def test_after_a_lost_answer_the_commit_is_sent_again() -> None:
    async with connected() as (client, node):
        node.after = once(protocol.EndTransactionAfter, ConnectionLost())
        async with client.transaction() as tx:
            await tx.publish("invoices", b"x")
        assert kinds(node) == [protocol.EndTransactionAfter, protocol.EndTransaction]
        assert tx.state is TransactionState.COMMITTED


@async_test
async def test_after_a_lost_answer_a_message_that_cannot_be_stored_aborts() -> None:
    async with connected() as (client, node):
        node.fate = lambda number: Fate.REQUEST_LOST if number == 1 else TopicNotFound()
        tx = await client.transaction()
        await tx.publish("invoices", b"x")
        with pytest.raises(TopicNotFound):
            await tx.commit()
        assert tx.state is TransactionState.ABORTED
        assert node.outcomes == {tx.id: False}


@async_test
async def test_a_commit_without_an_answer_is_in_doubt_until_somebody_says_what_became_of_it() -> (
    None
):
    async with connected() as (client, node):
        node.fate = lambda number: Fate.REQUEST_LOST if number == 1 else TopicNotFound()
        node.before = always(protocol.EndTransaction, ConnectionLost())
        tx = await client.transaction()
        await tx.publish("invoices", b"x")
        with pytest.raises(TransactionInDoubt, match=str(tx.id)):
            await tx.commit()
        assert tx.state is TransactionState.UNKNOWN


@async_test
async def test_a_client_that_was_fenced_hears_of_it() -> None:
    async with connected() as (client, node):
        tx = await client.transaction("importer")
        await tx.publish("invoices", b"x")
        node._owners["importer"] += 1
        with pytest.raises(TransactionFenced):
            await tx.commit()
        assert tx.state is TransactionState.ABORTED
        with pytest.raises(TransactionFenced):
            await client.transaction("importer")
