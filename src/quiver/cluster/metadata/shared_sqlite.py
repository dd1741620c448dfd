"""The metadata store of several processes on one machine: one SQLite file that all of them use.

It keeps the whole contract of ``MetadataStore``, for the processes together. Whoever commits wakes the
watchers of the others through a pipe; a look every second finds what a process did not tell before it
ended. A lease ends with the process that was granted it, or at its time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import cast

import structlog

from quiver.aio import cancel_and_wait
from quiver.cluster.metadata.shared_database import SharedDatabase
from quiver.cluster.metadata.sqlite import SqliteStore
from quiver.cluster.metadata.sqlite_database import Database
from quiver.cluster.metadata.store import Delete, Lease, LeaseId, Put, check_ttl
from quiver.errors import MetadataError
from quiver.model.clock import Clock

_LOOK_S = 1.0

logger = structlog.get_logger()


class SharedSqliteStore(SqliteStore):
    """Use ``open``. All calls come from the event loop in which it was opened."""

    def __init__(self, database: Database, thread: ThreadPoolExecutor, clock: Clock) -> None:
        super().__init__(database, thread, clock)
        self._shared = cast(SharedDatabase, database)
        self._seen = 0
        self._loop.add_reader(self._shared.wake_files.descriptor, self._on_wake)
        self._looking = asyncio.create_task(self._look())

    @staticmethod
    def _open_database(path: str, history_revisions: int, clock: Clock) -> Database:
        database = SharedDatabase.open(path, history_revisions)
        database.monotonic = clock.monotonic
        database.wake_files.wake_others()  # perhaps leases have ended
        return database

    async def grant(self, ttl_seconds: int) -> Lease:
        check_ttl(ttl_seconds)
        return Lease(await self._call(partial(self._shared.grant, ttl_seconds)), ttl_seconds)

    async def keep_alive(self, lease_id: LeaseId) -> int:
        return await self._call(partial(self._shared.keep_alive, lease_id))

    async def revoke(self, lease_id: LeaseId) -> None:
        await self._call(self._then_wake(partial(self._shared.end_lease, lease_id)))

    async def close(self) -> None:
        if self._closed:
            return
        self._loop.remove_reader(self._shared.wake_files.descriptor)
        await cancel_and_wait(self._looking)
        await super().close()

    def _check_leases(self, _changes: Sequence[Put | Delete]) -> None:
        """They are rows: the commit itself looks at them."""

    def _then_wake(self, work: Callable[[], int]) -> Callable[[], int]:
        """The work, and then the watchers of all processes are woken."""

        def work_and_wake_others() -> int:
            revision = work()
            self._shared.wake_files.wake_others()
            return revision

        return super()._then_wake(work_and_wake_others)

    def _on_wake(self) -> None:
        self._shared.wake_files.take()
        self._changed.wake()

    async def _look(self) -> None:
        """End leases, and see what nobody told."""
        while True:
            await self._clock.sleep(_LOOK_S)
            try:
                revision = await self._call(self._look_around)
            except MetadataError as error:
                logger.warning("the metadata store does not answer", error=error.message)
                continue
            if revision != self._seen:
                self._seen = revision
                self._changed.wake()

    def _look_around(self) -> int:
        if self._shared.end_leases():
            self._shared.wake_files.wake_others()
        return self._shared.revision()
