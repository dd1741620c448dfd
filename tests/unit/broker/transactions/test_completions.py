"""Clients that wait for the participants: for a limited time, which begins when the outcome is durable."""

from __future__ import annotations

import pytest

from quiver.broker.transactions.completions import COMPLETE_S, Completions
from quiver.errors import DiskFull
from quiver.model.transaction import TransactionId
from quiver.testing.clock import ManualClock
from tests.aio import async_test

ONE, OTHER = TransactionId(1), TransactionId(2)


@async_test
async def test_all_who_wait_for_a_transaction_are_answered() -> None:
    completions = Completions(ManualClock())
    waiting = [completions.wait(ONE), completions.wait(ONE), completions.wait(OTHER)]
    completions.limit(ONE)
    completions.answer(ONE, is_complete=True)
    assert [waiter.done() for waiter in waiting] == [True, True, False]
    assert await waiting[0]
    completions.close()


@async_test
async def test_no_time_passes_before_the_outcome_is_durable() -> None:
    clock = ManualClock()
    completions = Completions(clock)
    waiter = completions.wait(ONE)
    await clock.advance(10 * COMPLETE_S)
    assert not waiter.done()
    completions.limit(ONE)
    await clock.advance(COMPLETE_S - 0.1)
    assert not waiter.done()
    await clock.advance(0.1)
    assert not await waiter


@async_test
async def test_each_has_its_own_time() -> None:
    clock = ManualClock()
    completions = Completions(clock)
    first, second = completions.wait(ONE), completions.wait(OTHER)
    completions.limit(ONE)
    await clock.advance(1)
    completions.limit(OTHER)
    await clock.advance(COMPLETE_S - 1)
    assert not await first
    assert not second.done()
    await clock.advance(1)
    assert not await second


@async_test
async def test_an_outcome_that_cannot_be_stored_is_an_error() -> None:
    completions = Completions(ManualClock())
    waiter = completions.wait(ONE)
    completions.fail(ONE, DiskFull("the disk is full"))
    with pytest.raises(DiskFull):
        await waiter


@async_test
async def test_closing_answers_only_those_whose_outcome_is_durable() -> None:
    completions = Completions(ManualClock())
    durable, undecided = completions.wait(ONE), completions.wait(OTHER)
    completions.limit(ONE)
    completions.close()
    assert not await durable
    assert not undecided.done()


@async_test
async def test_nothing_is_kept_of_those_who_were_answered() -> None:
    clock = ManualClock()
    completions = Completions(clock)
    for number in range(1_000):
        transaction = TransactionId(number)
        completions.wait(transaction)
        completions.limit(transaction)
        completions.answer(transaction, is_complete=True)
    assert len(completions._limited) == 1
    assert not completions._waiters
    completions.close()
