"""What a client is told of a failure."""

from __future__ import annotations

import asyncio
from typing import Any

import structlog

from quiver.errors import QuiverError, ShuttingDown, Unavailable

logger = structlog.get_logger()


def explained(error: BaseException) -> QuiverError:
    """What a client is told; of what should never happen, only that the node's log has it."""
    if isinstance(error, QuiverError):
        return error
    logger.error("request failed unexpectedly", exc_info=error)
    return Unavailable("the node failed to handle the request; see its log")


def failure_of(done: asyncio.Future[Any]) -> QuiverError | None:
    """What a client is told if that failed which its request waited for."""
    if done.cancelled():
        return ShuttingDown()
    error = done.exception()
    return None if error is None else explained(error)
