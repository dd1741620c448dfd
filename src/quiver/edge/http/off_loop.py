"""Work that is linear in bytes from outside: a few are handled at once, many in a thread.

A thread costs a small request more than the work itself, and the event loop must not wait for a large one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

IN_A_THREAD_BYTES = 64 << 10

P = ParamSpec("P")
R = TypeVar("R")


async def off_loop(size: int, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """The result of work on ``size`` bytes."""
    if size < IN_A_THREAD_BYTES:
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)
