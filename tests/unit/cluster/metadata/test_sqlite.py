from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from quiver.cluster.metadata.sqlite import SqliteStore
from quiver.cluster.metadata.sqlite_database import SHARED_SCHEMA_VERSION, translate
from quiver.cluster.metadata.store import Delete, Entry, Expect, MetadataStore, Put, WatchBatch
from quiver.errors import (
    FolderInUse,
    LeaseLost,
    MetadataConflict,
    MetadataError,
    MetadataUnavailable,
    UnsupportedFormat,
    WatchCompacted,
)
from quiver.model.clock import SystemClock
from quiver.testing.clock import ManualClock
from tests.aio import async_test, run
from tests.unit.cluster.metadata.metadata_conformance import MetadataConformance

SUITE_HISTORY_REVISIONS = 300
PAGE_BYTES = 4096


class TestSqliteStore(MetadataConformance):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.path = str(tmp_path / "metadata.db")
        self.clock = ManualClock()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[MetadataStore]:
        store = await SqliteStore.open(
            self.path, self.clock, history_revisions=SUITE_HISTORY_REVISIONS
        )
        try:
            yield store
        finally:
            await store.close()

    async def pass_time(self, seconds: float) -> None:
        await self.clock.advance(seconds)

    async def forget_history(self, store: MetadataStore) -> None:
        for _ in range(SUITE_HISTORY_REVISIONS):
            await store.commit([], [Put("noise", b"")])


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "metadata.db")


@asynccontextmanager
async def opened(path: str, **settings: int) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(path, ManualClock(), **settings)
    try:
        yield store
    finally:
        await store.close()


def read(path: str) -> bytes:
    return Path(path).read_bytes()


def write(path: str, data: bytes) -> None:
    Path(path).write_bytes(data)


# Opening again


@async_test
async def test_opening_again_finds_entries_revision_and_history(path: str) -> None:
    async with opened(path) as store:
        await store.commit([], [Put("a", b"1"), Put("b", b"2")])
        before = await store.list("")
    async with opened(path) as store:
        assert await store.list("") == before
        revision = await store.commit([], [Delete("a")])
        assert revision == before.revision + 1
        async with aclosing(store.watch("", 0)) as watch:
            assert await anext(watch) == WatchBatch(before.revision, before.entries)
            assert await anext(watch) == WatchBatch(revision, (Delete("a"),))


@async_test
async def test_the_revision_does_not_go_back_when_all_keys_are_deleted(path: str) -> None:
    async with opened(path) as store:
        await store.commit([], [Put("a", b"1")])
        revision = await store.commit([], [Delete("a")])
    async with opened(path) as store:
        assert (await store.list("")).revision == revision


@async_test
async def test_opening_again_ends_the_leases_and_watchers_see_it(path: str) -> None:
    async with opened(path) as store:
        lease, other = await store.grant(60), await store.grant(60)
        changes = [Put("b", b"", lease.id), Put("a", b"", other.id), Put("stays", b"")]
        before = await store.commit([], changes)
    async with opened(path) as store:
        listing = await store.list("")
        assert listing.entries == (Entry("stays", b"", before),)
        async with aclosing(store.watch("", before)) as watch:
            expected = WatchBatch(listing.revision, (Delete("a"), Delete("b")))
            assert await anext(watch) == expected
        with pytest.raises(LeaseLost):
            await store.keep_alive(lease.id)
        assert (await store.grant(60)).id not in (lease.id, other.id)


@async_test
async def test_an_open_store_cannot_be_opened_a_second_time(path: str) -> None:
    async with opened(path) as store:
        with pytest.raises(FolderInUse, match=r"metadata\.db"):
            await SqliteStore.open(path, ManualClock())
        await store.commit([], [Put("a", b"1")])
    async with opened(path) as store:
        assert await store.get("a") is not None


@async_test
async def test_a_cancelled_opening_leaves_the_file_free(path: str) -> None:
    for delay_seconds in (0, 0.001, 0.002, 0.004, 0.008):
        opening = asyncio.create_task(SqliteStore.open(path, ManualClock()))
        await asyncio.sleep(delay_seconds)
        if not opening.cancel():
            await opening.result().close()
        await _until_free(path)
    async with opened(path) as store:
        await store.commit([], [Put("a", b"1")])
        assert await store.get("a") is not None


async def _until_free(path: str) -> None:
    while True:
        try:
            async with opened(path):
                return
        except FolderInUse:
            await asyncio.sleep(0.001)


# Crashes

CHILD = """
import asyncio, sys
from quiver.cluster.metadata.store import Expect, Put
from quiver.cluster.metadata.sqlite import SqliteStore
from quiver.model.clock import SystemClock

async def write(store, writer):
    n, revision = 0, 0
    while True:
        n += 1
        value = b"%d" % n
        revision = await store.commit(
            [Expect(f"left/{writer}", revision)],
            [Put(f"left/{writer}", value), Put(f"right/{writer}", value)],
        )
        print(writer, n, revision, flush=True)

async def main():
    store = await SqliteStore.open(sys.argv[1], SystemClock())
    await asyncio.gather(*(write(store, writer) for writer in range(4)))

asyncio.run(main())
"""


@pytest.mark.process
@pytest.mark.parametrize("lines", [1, 50, 400])
def test_kill_9_amid_commits_keeps_every_acknowledged_one_whole(path: str, lines: int) -> None:
    with subprocess.Popen([sys.executable, "-c", CHILD, path], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        told = [child.stdout.readline() for _ in range(lines)]
        child.send_signal(signal.SIGKILL)
        told += child.stdout.read().splitlines(keepends=True)
    acknowledged = [tuple(map(int, line.split())) for line in told if line.endswith(b"\n")]
    assert len(acknowledged) >= lines

    async def check() -> None:
        async with opened(path) as store:
            listing = await store.list("")
            assert listing.revision >= max(revision for _, _, revision in acknowledged)
            values = {entry.key: int(entry.value) for entry in listing.entries}
            for writer, n, _ in acknowledged:
                assert values[f"left/{writer}"] >= n
            for writer in range(4):
                assert values.get(f"left/{writer}") == values.get(f"right/{writer}")

    run(check())


FULL_DISK_CHILD = """
import asyncio, resource, sys
from quiver.cluster.metadata.store import Expect, Put
from quiver.cluster.metadata.sqlite import SqliteStore
from quiver.errors import MetadataUnavailable
from quiver.model.clock import SystemClock

async def main():
    store = await SqliteStore.open(sys.argv[1], SystemClock())
    revision = await store.commit([], [Put("a", b"before")])
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 << 10, resource.RLIM_INFINITY))
    for _ in range(3):
        try:
            await store.commit([], [Put("a", bytes(1 << 20)), Put("b", b"")])
        except MetadataUnavailable as error:
            assert error.retryable and sys.argv[1] in error.message, error
        else:
            raise AssertionError("a commit larger than the disk went through")
        entry = await store.get("a")
        assert (entry.value, entry.revision) == (b"before", revision), entry
        assert await store.get("b") is None
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert await store.commit([Expect("a", revision)], [Put("a", bytes(1 << 20))]) == revision + 1
    await store.close()

asyncio.run(main())
"""


@pytest.mark.process
def test_a_commit_that_finds_no_room_leaves_nothing_and_can_be_made_again(path: str) -> None:
    subprocess.run([sys.executable, "-c", FULL_DISK_CHILD, path], check=True, timeout=60)

    async def check() -> None:
        async with opened(path) as store:
            entry = await store.get("a")
            assert entry is not None
            assert entry.value == bytes(1 << 20)

    run(check())


# Files that are refused


@async_test
async def test_a_newer_schema_is_refused_and_left_alone(path: str) -> None:
    async with opened(path) as store:
        await store.commit([], [Put("a", b"1")])
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {SHARED_SCHEMA_VERSION + 1}")
    connection.close()
    before = read(path)
    with pytest.raises(UnsupportedFormat, match=f"version {SHARED_SCHEMA_VERSION + 1}"):
        await SqliteStore.open(path, ManualClock())
    assert read(path) == before


@async_test
async def test_someone_elses_database_is_refused(path: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE photos (name TEXT)")
    connection.close()
    with pytest.raises(MetadataError, match="not a Quiver metadata store"):
        await SqliteStore.open(path, ManualClock())


@async_test
async def test_bytes_that_are_no_database_are_refused_by_name(path: str) -> None:
    write(path, b"these are not the bytes you are looking for" * 1000)
    with pytest.raises(MetadataError, match=r"metadata\.db is corrupted"):
        await SqliteStore.open(path, ManualClock())


@async_test
async def test_damage_to_any_page_is_refused_by_name_and_the_file_left_alone(path: str) -> None:
    async with opened(path) as store:
        for n in range(50):
            await store.commit([], [Put(f"key/{n}", bytes(500))])
    whole = read(path)
    assert len(whole) > 10 * PAGE_BYTES
    damaged = [whole[: len(whole) // 2]]
    for start in range(0, len(whole), PAGE_BYTES):
        for byte in (b"\xa5", b"\0"):
            damaged.append(whole[:start] + byte * PAGE_BYTES + whole[start + PAGE_BYTES :])
    for data in damaged:
        write(path, data)
        with pytest.raises(MetadataError, match=r"metadata\.db is corrupted") as caught:
            await SqliteStore.open(path, ManualClock())
        assert caught.value.details["path"] == path
        assert read(path) == data


@async_test
async def test_a_folder_that_is_not_there_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(MetadataError, match=r"missing/metadata\.db"):
        await SqliteStore.open(str(tmp_path / "missing" / "metadata.db"), ManualClock())


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (sqlite3.SQLITE_FULL, MetadataUnavailable),
        (sqlite3.SQLITE_IOERR, MetadataUnavailable),
        (sqlite3.SQLITE_IOERR_FSYNC, MetadataUnavailable),
        (sqlite3.SQLITE_BUSY, FolderInUse),
        (sqlite3.SQLITE_CORRUPT, MetadataError),
        (sqlite3.SQLITE_NOTADB, MetadataError),
        (sqlite3.SQLITE_READONLY, MetadataError),
        (None, MetadataError),
    ],
)
def test_every_sqlite_error_has_its_meaning(code: int | None, expected: type[Exception]) -> None:
    error = sqlite3.OperationalError("the cause")
    if code is not None:
        error.sqlite_errorcode = code
    translated = translate("/data/metadata.db", error)
    assert type(translated) is expected
    assert "/data/metadata.db" in translated.message


# History


@async_test
async def test_history_is_kept_for_exactly_its_revisions(path: str) -> None:
    async with opened(path, history_revisions=10) as store:
        revisions = [await store.commit([], [Put("a", b"%d" % n)]) for n in range(30)]
        oldest = revisions[-1] - 10
        async with aclosing(store.watch("", oldest)) as watch:
            assert [(await anext(watch)).revision for _ in range(10)] == revisions[-10:]
        with pytest.raises(WatchCompacted) as caught:
            await anext(store.watch("", oldest - 1))
        assert caught.value.details["compacted_revision"] == oldest


@async_test
async def test_what_was_forgotten_stays_forgotten_under_a_longer_history(path: str) -> None:
    async with opened(path, history_revisions=2) as store:
        for _ in range(10):
            revision = await store.commit([], [Put("a", b"")])
    async with opened(path, history_revisions=100) as store:
        await store.commit([], [Put("a", b"")])
        with pytest.raises(WatchCompacted):
            await anext(store.watch("", revision - 3))


@async_test
async def test_a_long_and_heavy_history_is_told_in_full(path: str) -> None:
    async with opened(path) as store:
        start = (await store.list("")).revision
        revisions = []
        for n in range(600):
            value = bytes(400_000) if n % 100 == 0 else b"light"
            revisions.append(await store.commit([], [Put(f"{n % 7}", value), Put("x", b"")]))
        async with aclosing(store.watch("", start)) as watch:
            batches = [await anext(watch) for _ in revisions]
        assert [batch.revision for batch in batches] == revisions
        assert all(len(batch.changes) == 2 for batch in batches)


@async_test
async def test_a_watcher_too_slow_for_the_history_is_told_so(path: str) -> None:
    async with opened(path, history_revisions=5) as store:
        start = await store.commit([], [Put("a", b"")])
        await store.commit([], [Put("a", b"")])
        async with aclosing(store.watch("", start)) as watch:
            assert (await anext(watch)).revision == start + 1
            for _ in range(10):
                await store.commit([], [Put("a", b"")])
            with pytest.raises(WatchCompacted):
                await anext(watch)


@async_test
async def test_a_commit_whose_caller_was_cancelled_still_reaches_watchers(path: str) -> None:
    async with opened(path) as store:
        told = (await store.list("")).revision
        async with aclosing(store.watch("", told)) as watch:
            for n in range(40):
                commit = asyncio.create_task(store.commit([], [Put("a", bytes(100_000))]))
                await asyncio.sleep(n * 0.0001)
                commit.cancel()
                revision = (await store.list("")).revision
                if revision > told:
                    told = (await anext(watch)).revision
                assert told == revision


# Leases on virtual time


@async_test
async def test_leases_run_out_in_their_order(path: str) -> None:
    clock = ManualClock()
    store = await SqliteStore.open(path, clock)
    for seconds in (30, 10, 20):
        lease = await store.grant(seconds)
        start = await store.commit([], [Put(f"for/{seconds}", b"", lease.id)])
    await clock.advance(31)
    async with aclosing(store.watch("", start)) as watch:
        gone = [(await anext(watch)).changes for _ in range(3)]
    assert gone == [(Delete("for/10"),), (Delete("for/20"),), (Delete("for/30"),)]
    assert clock.sleepers == 0
    await store.close()


@async_test
async def test_a_lease_ends_at_its_time_and_not_before(path: str) -> None:
    clock = ManualClock()
    store = await SqliteStore.open(path, clock)
    lease = await store.grant(10)
    await store.commit([], [Put("a", b"", lease.id)])
    await clock.advance(9.999)
    assert await store.get("a") is not None
    assert await store.keep_alive(lease.id) == 10
    await clock.advance(9.999)
    assert await store.get("a") is not None
    await clock.advance(0.001)
    assert await store.get("a") is None
    await store.close()


@async_test
async def test_a_lease_past_its_time_is_lost_before_its_keys_are_gone(path: str) -> None:
    class SleepyClock(ManualClock):
        async def sleep(self, seconds: float) -> None:
            await asyncio.Event().wait()

    clock = SleepyClock()
    store = await SqliteStore.open(path, clock)
    lease = await store.grant(10)
    await clock.advance(10)
    with pytest.raises(LeaseLost):
        await store.keep_alive(lease.id)
    with pytest.raises(LeaseLost):
        await store.commit([], [Put("a", b"", lease.id)])
    await store.close()


@async_test
async def test_closing_leaves_no_lease_asleep(path: str) -> None:
    clock = ManualClock()
    store = await SqliteStore.open(path, clock)
    await store.grant(10)
    await asyncio.sleep(0)
    assert clock.sleepers == 1
    await store.close()
    assert clock.sleepers == 0


# The event loop


@async_test
async def test_the_event_loop_goes_on_while_the_disk_is_busy(path: str) -> None:
    store = await SqliteStore.open(path, SystemClock())
    commit = asyncio.create_task(store.commit([], [Put("a", os.urandom(1 << 20))]))
    turns = 0
    while not commit.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 3
    await store.close()


@async_test
async def test_a_lock_taken_by_compare_and_swap_has_one_holder_at_a_time(path: str) -> None:
    async with opened(path) as store:
        holders = 0

        async def hold() -> None:
            nonlocal holders
            while True:
                try:
                    revision = await store.commit([Expect("lock", 0)], [Put("lock", b"")])
                    break
                except MetadataConflict:
                    await asyncio.sleep(0)
            holders += 1
            assert holders == 1
            await asyncio.sleep(0)
            holders -= 1
            await store.commit([Expect("lock", revision)], [Delete("lock")])

        await asyncio.gather(*(hold() for _ in range(20)))
