"""A client's part of a shared transaction: it is kept open while it is written, and ended with the rest."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from quiver import protocol
from quiver.client import AsyncClient
from quiver.client.transaction.shared import PartReference, SharedTransactions
from quiver.errors import ConnectionLost, TransactionNotFound, TransactionTooLarge
from quiver.model.clock import Clock
from quiver.model.envelope import TRANSACTIONAL
from quiver.model.transaction import PARTICIPANTS_MAX, TransactionId, producer_of
from quiver.protocol import Participant
from quiver.testing.clock import ManualClock
from tests.aio import async_test
from tests.unit.client.scripted_node import HastyClock, ScriptedDialer
from tests.unit.client.transaction.scripted_coordinator import TOKEN, ScriptedCoordinator, once


class SharingCoordinator(ScriptedCoordinator):
    """Knows which numbers are committed."""

    def __init__(self) -> None:
        super().__init__()
        self.committed: set[int] = set()

    def _answer(self, request):
        if isinstance(request, protocol.JoinTransaction):
            if request.number in self.committed:
                return protocol.TransactionEnded(is_committed=True)
            return protocol.Done()
        if isinstance(request, protocol.EndTransaction) and request.number is not None:
            if request.is_commit:
                self.committed.add(request.number)
                self.outcomes |= dict.fromkeys(request.parts, True)
            return protocol.TransactionEnded(is_committed=request.is_commit)
        return super()._answer(request)

    def asked(self, kind):
        return [request for request in self.requests if isinstance(request, kind)]


@asynccontextmanager
async def scripted(
    clock: Clock | None = None,
) -> AsyncIterator[tuple[SharedTransactions, SharingCoordinator]]:
    node = SharingCoordinator()
    node.add_topic("invoices", 2)
    async with AsyncClient(dialer=ScriptedDialer(node), clock=clock or HastyClock()) as client:
        yield SharedTransactions(client.cluster, "sink", 60.0), node


async def written(shared: SharedTransactions, number: int) -> PartReference:
    part = await shared.part(number)
    assert part is not None
    await (await part.producer("invoices")).send(b"x", partition=1)
    return await part.stored()


@async_test
async def test_a_part_is_joined_before_it_is_written_and_named_in_the_commit() -> None:
    async with scripted() as (shared, node):
        part = await written(shared, 3)
        join = node.asked(protocol.JoinTransaction)[0]
        assert (join.transaction, join.name, join.number) == (part.transaction, "sink", 3)
        assert node.requests.index(join) < node.requests.index(node.asked(protocol.Publish)[0])
        (entry,) = node.partitions["invoices"][1].entries
        assert entry.flags == TRANSACTIONAL
        assert (entry.producer_id, entry.producer_epoch) == producer_of(part.transaction)
        await shared.commit(3, [part])
        (end,) = node.asked(protocol.EndTransaction)
        assert (end.token, end.name, end.number, end.parts) == (
            TOKEN,
            "sink",
            3,
            [part.transaction],
        )
        assert end.participants == [Participant("invoices", 1)]
        assert await shared.part(3) is None


@async_test
async def test_a_commit_whose_answer_is_lost_is_asked_for_by_a_part() -> None:
    async with scripted() as (shared, node):
        part = await written(shared, 0)
        node.after = once(protocol.EndTransaction, ConnectionLost("lost"))
        await shared.commit(0, [part])
        assert node.committed == {0}


@async_test
async def test_a_name_that_was_forgotten_is_begun_again() -> None:
    async with scripted() as (shared, node):
        await shared.commit(0, [await written(shared, 0)])
        node.before = once(protocol.JoinTransaction, TransactionNotFound("forgotten"))
        await shared.commit(1, [await written(shared, 1)])
        assert len(node.asked(protocol.BeginTransactions)) == 2
        node.before = once(protocol.JoinTransaction, TransactionNotFound("ended for good"))
        shared.close()
        with pytest.raises(TransactionNotFound):
            await shared.part(2)


@async_test
async def test_a_part_says_that_it_is_written_until_it_is_stored() -> None:
    clock = ManualClock()
    async with scripted(clock) as (shared, node):
        part = await shared.part(0)
        assert part is not None
        for joins in (2, 3):
            await clock.advance(10.0)
            assert len(node.asked(protocol.JoinTransaction)) == joins
        await part.stored()
        await clock.advance(60.0)
        assert len(node.asked(protocol.JoinTransaction)) == 3


@async_test
async def test_more_partitions_than_one_may_reach_are_refused() -> None:
    async with scripted() as (shared, node):
        many = [Participant("t", number) for number in range(PARTICIPANTS_MAX + 1)]
        with pytest.raises(TransactionTooLarge):
            await shared.commit(0, [PartReference(TransactionId(1), TOKEN, many)])
        assert not node.asked(protocol.EndTransaction)
