"""Async tests without a plugin: each test gets an event loop of its own, and a time limit."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

Result = TypeVar("Result")
Parameters = ParamSpec("Parameters")


def run(coroutine: Coroutine[Any, Any, Result], timeout_seconds: float = 60) -> Result:
    async def limited() -> Result:
        async with asyncio.timeout(timeout_seconds):
            return await coroutine

    return asyncio.run(limited())


def async_test(
    test: Callable[Parameters, Coroutine[Any, Any, None]],
) -> Callable[Parameters, None]:
    """Make an async test function, or method, one that pytest runs as it is."""

    @functools.wraps(test)
    def wrapper(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        run(test(*args, **kwargs))

    return wrapper


async def turns(count: int = 50) -> None:
    """Let everybody who can go on do so: so many turns of the event loop."""
    for _ in range(count):
        await asyncio.sleep(0)
