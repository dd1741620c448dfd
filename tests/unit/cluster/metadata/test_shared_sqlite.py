from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from quiver.cluster.metadata.shared_database import SharedDatabase
from quiver.cluster.metadata.shared_sqlite import SharedSqliteStore
from quiver.cluster.metadata.sqlite import SqliteStore
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
)
from quiver.errors import FolderInUse, LeaseLost
from quiver.model.clock import SystemClock
from quiver.testing.clock import ManualClock
from tests.aio import async_test, run
from tests.unit.cluster.metadata.metadata_conformance import MetadataConformance

HISTORY_REVISIONS = 300
STEP_S = 0.5


class TestSharedSqliteStore(MetadataConformance):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.path = str(tmp_path / "metadata.db")
        self.clock = ManualClock()

    async def open_one(self) -> SharedSqliteStore:
        return await SharedSqliteStore.open(
            self.path, self.clock, history_revisions=HISTORY_REVISIONS
        )

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[MetadataStore]:
        store = await self.open_one()
        try:
            yield store
        finally:
            await store.close()

    async def pass_time(self, seconds: float) -> None:
        """In steps: a look at the leases takes place in a thread, which no virtual time waits for."""
        for _ in range(round(seconds / STEP_S)):
            await self.clock.advance(STEP_S)
            await asyncio.sleep(0.01)

    async def forget_history(self, store: MetadataStore) -> None:
        for _ in range(HISTORY_REVISIONS):
            await store.commit([], [Put("noise", b"")])


class Taking:
    """Two stores of one file, which take turns with the calls."""

    def __init__(self, *stores: SharedSqliteStore) -> None:
        self._stores = stores
        self._turns = itertools.cycle(stores)

    async def get(self, key: str) -> Entry | None:
        return await next(self._turns).get(key)

    async def list(self, prefix: str) -> Listing:
        return await next(self._turns).list(prefix)

    async def commit(self, expects: Sequence[Expect], changes: Sequence[Put | Delete]) -> int:
        return await next(self._turns).commit(expects, changes)

    async def grant(self, ttl_seconds: int) -> Lease:
        return await next(self._turns).grant(ttl_seconds)

    async def keep_alive(self, lease_id: LeaseId) -> int:
        return await next(self._turns).keep_alive(lease_id)

    async def revoke(self, lease_id: LeaseId) -> None:
        await next(self._turns).revoke(lease_id)

    def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        return next(self._turns).watch(prefix, from_revision)

    async def close(self) -> None:
        for store in self._stores:
            await store.close()


class TestTwoSharedSqliteStores(TestSharedSqliteStore):
    @asynccontextmanager
    async def opened(self) -> AsyncIterator[MetadataStore]:
        store = Taking(await self.open_one(), await self.open_one())
        try:
            yield store
        finally:
            await store.close()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "metadata.db")


@asynccontextmanager
async def opened(path: str) -> AsyncIterator[SharedSqliteStore]:
    store = await SharedSqliteStore.open(path, SystemClock())
    try:
        yield store
    finally:
        await store.close()


# Together


@async_test
async def test_a_watcher_learns_at_once_of_what_another_store_commits(path: str) -> None:
    async with opened(path) as first, opened(path) as second:
        start = (await first.list("")).revision
        async with aclosing(second.watch("", start)) as watch:
            for n in range(20):
                waiting = asyncio.create_task(anext(watch))
                await asyncio.sleep(0.001)
                began = time.monotonic()
                revision = await first.commit([], [Put("a", b"%d" % n)])
                assert (await waiting).revision == revision
                assert time.monotonic() - began < 0.9  # sooner than the look every second


@async_test
async def test_a_file_that_was_one_process_is_shared_with_all_that_is_in_it(path: str) -> None:
    alone = await SqliteStore.open(path, SystemClock())
    lease = await alone.grant(60)
    await alone.commit([], [Put("a", b"1"), Put("leased", b"", lease.id)])
    await alone.close()
    async with opened(path) as first, opened(path) as second:
        for store in (first, second):
            assert [entry.key for entry in (await store.list("")).entries] == ["a"]


@async_test
async def test_a_shared_file_is_refused_to_who_wants_it_alone_while_it_is_open(path: str) -> None:
    async with opened(path) as store:
        with pytest.raises(FolderInUse):
            await SqliteStore.open(path, SystemClock())
        await store.commit([], [Put("a", b"1")])
    alone = await SqliteStore.open(path, SystemClock())
    assert await alone.get("a") is not None
    await alone.close()


@async_test
async def test_a_version_that_knows_one_process_only_would_refuse_a_shared_file(path: str) -> None:
    async with opened(path) as store:
        await store.commit([], [Put("a", b"1")])
    with sqlite3.connect(path) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    connection.close()
    assert version == 2


@async_test
async def test_closing_ends_the_leases_of_that_store_alone(path: str) -> None:
    async with opened(path) as staying:
        leaving = await SharedSqliteStore.open(path, SystemClock())
        kept, lost = await staying.grant(60), await leaving.grant(60)
        start = await staying.commit([], [Put("kept", b"", kept.id), Put("lost", b"", lost.id)])
        await leaving.close()
        async with aclosing(staying.watch("", start)) as watch, asyncio.timeout(20):
            assert (await anext(watch)).changes == (Delete("lost"),)
        await staying.keep_alive(kept.id)
        with pytest.raises(LeaseLost):
            await staying.keep_alive(lost.id)
    assert os.listdir(f"{path}.open") == []


def test_a_new_file_can_be_opened_and_closed_by_several_at_the_same_moment(tmp_path: Path) -> None:
    """SQLite says at once that the file is in use while another creates it or is the last to close."""
    openers = 4
    together = threading.Barrier(openers, timeout=20)

    def open_and_close(path: Path) -> None:
        together.wait()
        SharedDatabase.open(str(path), HISTORY_REVISIONS).close()

    with ThreadPoolExecutor(openers) as threads:
        for n in range(100):
            list(threads.map(open_and_close, [tmp_path / f"{n}.db"] * openers))


# Crashes

CHILD = """
import asyncio, sys
from quiver.cluster.metadata.store import Expect, Put
from quiver.cluster.metadata.shared_database import SharedDatabase
from quiver.cluster.metadata.shared_sqlite import SharedSqliteStore
from quiver.model.clock import SystemClock

async def write(store, writer, lease):
    n, revision = 0, 0
    while True:
        n += 1
        value = b"%d" % n
        revision = await store.commit(
            [Expect(f"left/{writer}", revision)],
            [
                Put(f"left/{writer}", value),
                Put(f"right/{writer}", value),
                Put(f"alive/{writer}", value, lease.id),
            ],
        )
        await store.keep_alive(lease.id)
        print(writer, n, revision, flush=True)

async def main():
    store = await SharedSqliteStore.open(sys.argv[1], SystemClock())
    lease = await store.grant(60)
    await asyncio.gather(*(write(store, f"{sys.argv[2]}/{writer}", lease) for writer in range(2)))

asyncio.run(main())
"""


def start_writer(path: str, name: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", CHILD, path, name], stdout=subprocess.PIPE)


@pytest.mark.process
def test_kill_9_of_one_process_amid_commits_harms_neither_the_file_nor_the_other(path: str) -> None:
    lines = 60
    with start_writer(path, "killed") as killed, start_writer(path, "other") as other:
        assert killed.stdout is not None
        assert other.stdout is not None
        told = [killed.stdout.readline() for _ in range(lines)]
        killed.send_signal(signal.SIGKILL)
        told += killed.stdout.read().splitlines(keepends=True)
        of_other = [other.stdout.readline() for _ in range(lines)]

        async def check() -> None:
            async with opened(path) as store:
                async with asyncio.timeout(20):
                    alive = [one.key for one in (await store.list("alive/")).entries]
                # Opening ends the leases of a process that is gone, and of no other.
                assert alive == ["alive/other/0", "alive/other/1"]
                values = {one.key: int(one.value) for one in (await store.list("")).entries}
                for line in (*told, *of_other):
                    if line.endswith(b"\n"):
                        writer, n, _ = line.decode().split()
                        assert values[f"left/{writer}"] >= int(n)
                for writer in ("killed/0", "killed/1"):
                    assert values[f"left/{writer}"] == values[f"right/{writer}"]

        run(check())
        other.send_signal(signal.SIGKILL)
    check_file = sqlite3.connect(path)
    assert check_file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    check_file.close()


@pytest.mark.process
def test_a_lease_of_a_killed_process_ends_long_before_its_time(path: str) -> None:
    async def check() -> None:
        async with opened(path) as store:
            start = (await store.list("")).revision
            with start_writer(path, "killed") as child:
                assert child.stdout is not None
                await asyncio.to_thread(child.stdout.readline)
                child.send_signal(signal.SIGKILL)
            async with aclosing(store.watch("alive/", start)) as watch, asyncio.timeout(20):
                async for batch in watch:
                    if all(isinstance(change, Delete) for change in batch.changes):
                        break
            assert (await store.list("alive/")).entries == ()

    run(check())
