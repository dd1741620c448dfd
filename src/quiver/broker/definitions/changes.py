"""Changes of the metadata store: each runs to its end, whatever becomes of its caller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from quiver.aio import TaskSet, retrieve_exception
from quiver.broker.remote.partition_router import RemoteBroker

T = TypeVar("T")


class MetadataChanges:
    """``revision`` is the newest that this node knows of the metadata store."""

    def __init__(self, revision: Callable[[], int], remote: RemoteBroker | None) -> None:
        self._revision = revision
        self._remote = remote
        self._under_way = TaskSet()

    async def run(self, change: Coroutine[Any, Any, T]) -> T:
        """Make a change, all of it, even if the caller is cancelled.

        Returns when the other nodes know of it too, those that answer.
        """
        changing = self._under_way.start(change)
        changing.add_done_callback(retrieve_exception)  # perhaps its caller is there no more
        changed = await asyncio.shield(changing)
        if self._remote is not None:
            await self._remote.spread(self._revision())
        return changed

    async def close(self) -> None:
        """Return when no change is under way."""
        await self._under_way.wait()
