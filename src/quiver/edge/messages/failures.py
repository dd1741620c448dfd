"""The errors that clients get for failures."""

from __future__ import annotations

import asyncio
from typing import Any

import structlog

from quiver.errors import QuiverError, ShuttingDown, Unavailable

logger = structlog.get_logger()


def explained(error: BaseException) -> QuiverError:
    """The error for the client. An unexpected one is logged, and the client is told to see the log."""
    if isinstance(error, QuiverError):
        return error
    logger.error("request failed unexpectedly", exc_info=error)
    return Unavailable("the node failed to handle the request; see its log")


def failure_of(done: asyncio.Future[Any]) -> QuiverError | None:
    """The error for the client if the future that its request waited for has failed."""
    if done.cancelled():
        return ShuttingDown()
    error = done.exception()
    return None if error is None else explained(error)
