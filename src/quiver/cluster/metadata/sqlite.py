"""The metadata store of a single node: one SQLite file, nothing to install.

It keeps the whole contract of ``MetadataStore``; the event loop never waits for the disk, because
every statement runs on one worker thread, in the order in which it was asked for. The newest 10,000
revisions can be watched from; memory does not grow with watchers that are slow, as each reads the
history from the file at its own pace.

Leases live in the process that opened the file, the only one that can: they do not survive it. The
next opening deletes the keys that were under them, as one revision that watchers see.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Self, TypeVar

from quiver.aio import Signal
from quiver.cluster.metadata.sqlite_database import Database
from quiver.cluster.metadata.store import (
    Delete,
    Entry,
    Expect,
    Lease,
    LeaseId,
    Listing,
    MetadataStore,
    Put,
    WatchBatch,
    check_commit,
    check_from_revision,
    check_key,
    check_prefix,
    check_ttl,
)
from quiver.errors import LeaseLost, MetadataError
from quiver.model.clock import Clock

HISTORY_REVISIONS = 10_000
_EXPIRY_RETRY_SECONDS = 1.0
_CLOCK_RESOLUTION_SECONDS = 1e-6

Result = TypeVar("Result")


class SqliteStore(MetadataStore):
    """Use ``open``. All calls come from the event loop in which it was opened."""

    def __init__(self, database: Database, thread: ThreadPoolExecutor, clock: Clock) -> None:
        self._database = database
        self._thread = thread
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._changed = Signal(clock)
        self._leases: dict[LeaseId, _Held] = {}
        self._granted = 0
        self._closed = False

    @classmethod
    async def open(
        cls, path: str, clock: Clock, *, history_revisions: int = HISTORY_REVISIONS
    ) -> Self:
        """Open or create the file at ``path``; its folder must exist.

        ``FolderInUse`` if another store has it open, ``UnsupportedFormat`` if a newer Quiver wrote
        it, ``MetadataError`` if it is corrupted or not a metadata store; it is then left as it was.
        """
        assert history_revisions > 0
        thread = ThreadPoolExecutor(1, thread_name_prefix="quiver-metadata")
        opening = thread.submit(cls._open_database, path, history_revisions, clock)
        try:
            database = await asyncio.wrap_future(opening)
        except BaseException:
            # An opening that goes on after its caller was cancelled must not keep the file locked.
            thread.submit(_close_if_opened, opening)
            thread.shutdown(wait=False)
            raise
        return cls(database, thread, clock)

    @staticmethod
    def _open_database(path: str, history_revisions: int, _clock: Clock) -> Database:
        return Database.open(path, history_revisions)

    async def get(self, key: str) -> Entry | None:
        check_key(key)
        return await self._call(partial(self._database.get, key))

    async def list(self, prefix: str) -> Listing:
        check_prefix(prefix)
        return await self._call(partial(self._database.list, prefix))

    async def commit(self, expects: Sequence[Expect], changes: Sequence[Put | Delete]) -> int:
        expects, changes = tuple(expects), tuple(changes)
        check_commit(expects, changes)
        self._check_open()
        self._check_leases(changes)
        # A lease that ends from here on asks for its deletion after this commit, so it comes after.
        return await self._call(self._then_wake(partial(self._database.commit, expects, changes)))

    async def grant(self, ttl_seconds: int) -> Lease:
        check_ttl(ttl_seconds)
        self._check_open()
        self._granted += 1
        # The opening's number keeps a lease of an earlier process from being taken for this one.
        lease_id = LeaseId(self._database.opening << 32 | self._granted)
        held = _Held(ttl_seconds, self._clock.monotonic() + ttl_seconds)
        held.expiry = asyncio.create_task(self._expire(lease_id, held))
        self._leases[lease_id] = held
        return Lease(lease_id, ttl_seconds)

    async def keep_alive(self, lease_id: LeaseId) -> int:
        self._check_open()
        held = self._live(lease_id)
        held.deadline = self._clock.monotonic() + held.ttl_seconds
        return held.ttl_seconds

    async def revoke(self, lease_id: LeaseId) -> None:
        self._check_open()
        held = self._leases.get(lease_id)
        if held is None:
            return
        held.ending = True
        await self._end(lease_id)
        # Only now: had the deletion failed, the expiry would still have seen to it.
        if held.expiry is not None:
            held.expiry.cancel()

    def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        check_prefix(prefix)
        check_from_revision(from_revision)
        self._check_open()
        return self._watch(prefix, from_revision)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for held in self._leases.values():
            if held.expiry is not None:
                held.expiry.cancel()
        self._leases.clear()
        self._changed.wake()
        try:
            await self._loop.run_in_executor(self._thread, self._database.close)
        finally:
            self._thread.shutdown(wait=False)

    async def _watch(self, prefix: str, position: int) -> AsyncGenerator[WatchBatch, None]:
        while not self._closed:
            # Taken before the read, so that a commit right after the read is not slept through.
            changed = self._changed.next_wake()
            try:
                read = await self._call(partial(self._database.changes_after, position, prefix))
                assert read.position >= position
                position = read.position
                for batch in read.batches:
                    yield batch
                if not read.more:
                    await changed
            finally:
                self._changed.forget(changed)

    async def _call(self, work: Callable[[], Result]) -> Result:
        self._check_open()
        return await self._loop.run_in_executor(self._thread, work)

    def _then_wake(self, work: Callable[[], int]) -> Callable[[], int]:
        """The work, and the watchers woken by the thread: even if the caller no longer waits."""

        def work_and_wake() -> int:
            revision = work()
            self._loop.call_soon_threadsafe(self._changed.wake)
            return revision

        return work_and_wake

    def _check_leases(self, changes: Sequence[Put | Delete]) -> None:
        for change in changes:
            if isinstance(change, Put) and change.lease is not None:
                self._live(change.lease)

    def _check_open(self) -> None:
        if self._closed:
            raise MetadataError("the metadata store is closed")

    def _live(self, lease_id: LeaseId) -> _Held:
        held = self._leases.get(lease_id)
        if held is None or held.ending or not self._seconds_left(held):
            raise LeaseLost(lease_id=lease_id)
        return held

    def _seconds_left(self, held: _Held) -> float:
        left = held.deadline - self._clock.monotonic()
        # Sums of seconds are rounded: a rest this small is not time, and nothing waits for it.
        return left if left > _CLOCK_RESOLUTION_SECONDS else 0.0

    async def _expire(self, lease_id: LeaseId, held: _Held) -> None:
        while left := self._seconds_left(held):
            await self._clock.sleep(left)
        held.ending = True
        while not self._closed:
            try:
                await self._end(lease_id)
            except MetadataError:
                await self._clock.sleep(_EXPIRY_RETRY_SECONDS)
            else:
                return

    async def _end(self, lease_id: LeaseId) -> None:
        await self._call(self._then_wake(partial(self._database.end_lease, lease_id)))
        self._leases.pop(lease_id, None)


@dataclass(slots=True, eq=False)
class _Held:
    """A lease and the task that ends it; ``ending`` from the moment nothing more may use it."""

    ttl_seconds: int
    deadline: float
    ending: bool = False
    expiry: asyncio.Task[None] | None = None


def _close_if_opened(opening: Future[Database]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
