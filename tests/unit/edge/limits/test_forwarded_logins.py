"""Logins through a forwarder: wrong tokens are bounded, and keep no valid one out."""

from __future__ import annotations

import asyncio

import pytest

from quiver.edge.limits.forwarded_logins import DOUBTFUL_MAX, WRONG_BURST, ForwardedLogins
from quiver.errors import Overloaded, QuotaExceeded, Unauthenticated
from quiver.testing.clock import ManualClock
from tests.aio import async_test, turns

A, B = "10.0.0.1", "10.0.0.2"


async def wrong(logins: ForwardedLogins, address: str = A) -> None:
    async with logins.asking(address):
        raise Unauthenticated


async def in_doubt() -> ForwardedLogins:
    """Logins after so many wrong tokens of ``A`` that its next ones are in doubt."""
    logins = ForwardedLogins(ManualClock())
    for _ in range(WRONG_BURST):
        with pytest.raises(Unauthenticated):
            await wrong(logins)
    return logins


@async_test
async def test_after_some_wrong_tokens_the_answer_says_to_wait() -> None:
    logins = await in_doubt()
    with pytest.raises(QuotaExceeded):
        await wrong(logins)
    with pytest.raises(Unauthenticated):
        await wrong(logins, B)


@async_test
async def test_a_valid_token_gets_in_beside_wrong_ones() -> None:
    logins = await in_doubt()
    async with logins.asking(A):
        pass


@async_test
async def test_nodes_are_asked_about_doubtful_tokens_one_at_a_time() -> None:
    logins, asked = await in_doubt(), 0
    answer = asyncio.Event()

    async def ask() -> None:
        nonlocal asked
        async with logins.asking(A):
            asked += 1
            await answer.wait()

    tasks = [asyncio.create_task(ask()) for _ in range(DOUBTFUL_MAX)]
    await turns(5)
    assert asked == 1
    with pytest.raises(Overloaded):
        async with logins.asking(A):
            pass
    async with logins.asking(B):
        pass  # others do not wait
    answer.set()
    await asyncio.gather(*tasks)
    assert asked == DOUBTFUL_MAX
