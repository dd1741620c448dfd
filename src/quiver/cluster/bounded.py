"""Doing the same with many things, a bounded number of them at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")

AT_ONCE = 32
"""How many commits, or replicas to open or close, a node has under way at a time."""


async def for_each(
    items: Sequence[Item], work: Callable[[Item], Awaitable[None]], at_once: int = AT_ONCE
) -> None:
    """``work`` on every item, begun in their order. The first error ends all that is under way."""
    waiting = iter(items)

    async def worker() -> None:
        for item in waiting:
            await work(item)

    workers = [asyncio.ensure_future(worker()) for _ in range(min(at_once, len(items)))]
    try:
        await asyncio.gather(*workers)
    except (Exception, asyncio.CancelledError):
        for one in workers:
            one.cancel()
        await asyncio.wait(workers)
        raise
