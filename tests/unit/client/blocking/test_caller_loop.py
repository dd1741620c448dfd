"""The loop in the caller's thread: whatever ends a call, the next one works."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from quiver.client import AsyncClient
from quiver.client.blocking.caller_loop import CallerLoop


@pytest.fixture
def caller() -> Iterator[CallerLoop]:
    made = CallerLoop(lambda: AsyncClient("quiver://127.0.0.1:1"))
    yield made
    made.close()


def run(caller: CallerLoop, work: Callable[[AsyncClient], Coroutine[Any, Any, Any]]) -> Any:
    assert caller.acquire()
    return caller.run(work)


async def one(_: AsyncClient) -> int:
    await asyncio.sleep(0)
    return 1


def interrupt() -> None:
    raise KeyboardInterrupt


async def interrupted_at_its_end(_: AsyncClient) -> None:
    asyncio.get_running_loop().call_soon(interrupt)


async def interrupted_amid(_: AsyncClient) -> None:
    asyncio.get_running_loop().call_soon(interrupt)
    await asyncio.sleep(60)


@pytest.mark.parametrize("work", [interrupted_at_its_end, interrupted_amid])
def test_a_call_works_after_one_that_was_interrupted(
    caller: CallerLoop, work: Callable[[AsyncClient], Coroutine[Any, Any, None]]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(caller, work)
    assert [run(caller, one) for _ in range(3)] == [1, 1, 1]
