"""The log on the event loop: group commit, back pressure, failure, waiting, and reads in threads."""

from __future__ import annotations

import asyncio
import errno
import functools
import gc
import threading
from collections.abc import Callable, Coroutine
from itertools import pairwise
from typing import Any, TypeVar

import msgspec
import pytest

from quiver.errors import LogClosed, LogError, LogFailed, OffsetOutOfRange
from quiver.log.disk.disk import Disk
from quiver.log.disk.disk_threads import RunBlocking, in_thread
from quiver.log.partition_log import PartitionLog
from quiver.log.retention import RetentionLimits
from quiver.model.batch import StoredBatch
from quiver.model.clock import Clock
from quiver.model.ids import LeaderEpoch, Microseconds, Offset
from quiver.model.topic import Durability
from quiver.testing.clock import ManualClock
from quiver.testing.disk import SimulatedDisk
from quiver.testing.simulated_handles import SimulatedAppendFile
from tests.aio import run
from tests.unit.log.small_logs import (
    FOLDER,
    SMALL,
    Facts,
    batch,
    facts,
    open_log,
    read_all,
)

T = TypeVar("T")
ENTRY = 192
"""Size of an entry made of ``batch()``."""


def async_test(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test; no task or future may be left with an error that nobody took."""

    async def watched(*args: Any, **kwargs: Any) -> None:
        complaints: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        await test(*args, **kwargs)
        for _ in range(3):
            await asyncio.sleep(0)
            gc.collect(0)
        assert complaints == []

    @functools.wraps(test)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        run(watched(*args, **kwargs))

    return wrapper


class SlowDisk:
    """Runs blocking calls here and now, but only while it is let go; counts them."""

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.free.set()
        self.calls = 0

    async def __call__(self, call: Callable[[], T]) -> T:
        await asyncio.sleep(0)
        await self.free.wait()
        self.calls += 1
        return call()


class HeldThread:
    """Runs blocking calls in a thread; while ``hold`` is set a call begins and does not go on."""

    def __init__(self) -> None:
        self.hold = False
        self.begun = threading.Event()
        self.release = threading.Event()

    async def __call__(self, call: Callable[[], T]) -> T:
        held, self.hold = self.hold, False

        def work() -> T:
            if held:
                self.begun.set()
                assert self.release.wait(30)
            return call()

        return await asyncio.get_running_loop().run_in_executor(None, work)

    async def wait_until_begun(self) -> None:
        assert await asyncio.get_running_loop().run_in_executor(None, self.begun.wait, 30)


async def open_partition(
    disk: Disk | None = None,
    clock: Clock | None = None,
    run_blocking: RunBlocking | None = None,
    **changes: Any,
) -> PartitionLog:
    return await PartitionLog.open(
        FOLDER,
        disk=disk or SimulatedDisk(1),
        clock=clock or ManualClock(),
        settings=msgspec.structs.replace(SMALL, **changes),
        run_blocking=run_blocking or SlowDisk(),
    )


async def settle() -> None:
    """Let everything run that can run without the disk or the clock."""
    for _ in range(20):
        await asyncio.sleep(0)


async def read_whole(log: PartitionLog) -> list[Facts]:
    found: list[Facts] = []
    offset = log.start_offset
    while entries := await log.read(offset):
        found += [facts(entry) for entry in entries]
        offset = entries[-1].next_offset
    return found


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The path of each file synced on a simulated disk."""
    synced: list[str] = []
    original = SimulatedAppendFile.sync

    def sync(file: SimulatedAppendFile) -> None:
        synced.append(file._path)
        original(file)

    monkeypatch.setattr(SimulatedAppendFile, "sync", sync)
    return synced


# ---------------------------------------------------------------------- group commit


@async_test
async def test_many_appends_share_few_syncs(syncs: list[str]) -> None:
    log = await open_partition(segment_bytes=1 << 20, checkpoint_bytes=1 << 20)
    syncs.clear()
    await asyncio.gather(*(log.append(batch(seed=seed)) for seed in range(500)))
    assert len(syncs) <= 2
    assert log.durable_offset == 500


@async_test
async def test_offsets_are_in_call_order() -> None:
    log = await open_partition()
    entries = await asyncio.gather(
        *(log.append(batch(count=1 + seed % 3, seed=seed)) for seed in range(50))
    )
    assert [facts(entry) for entry in entries] == await read_whole(log)
    assert [entry.sequence for entry in entries] == list(range(50))


@async_test
async def test_an_append_is_acknowledged_only_when_it_is_durable() -> None:
    disk_turn = SlowDisk()
    log = await open_partition(run_blocking=disk_turn)
    disk_turn.free.clear()
    entry, acknowledged = log.submit(batch(seed=1))
    await settle()
    assert (entry.base_offset, acknowledged.done()) == (0, False)
    assert (log.durable_offset, log.next_offset, log.staged_offset) == (0, 0, 1)
    disk_turn.free.set()
    assert await acknowledged == entry
    assert (log.durable_offset, log.next_offset) == (1, 1)


@async_test
async def test_what_arrives_while_the_disk_is_busy_goes_with_the_next_commit() -> None:
    disk_turn = SlowDisk()
    log = await open_partition(run_blocking=disk_turn)
    disk_turn.free.clear()
    first = asyncio.create_task(log.append(batch(seed=0)))
    await settle()
    later = [asyncio.create_task(log.append(batch(seed=seed))) for seed in range(1, 40)]
    await settle()
    disk_turn.calls = 0
    disk_turn.free.set()
    await asyncio.gather(first, *later)
    assert disk_turn.calls == 2


@async_test
async def test_a_cancelled_append_is_stored_and_its_neighbours_are_acknowledged() -> None:
    disk_turn = SlowDisk()
    log = await open_partition(run_blocking=disk_turn)
    disk_turn.free.clear()
    appends = [asyncio.create_task(log.append(batch(seed=seed))) for seed in range(3)]
    await settle()
    appends[1].cancel()
    await settle()
    disk_turn.free.set()
    done = await asyncio.gather(*appends, return_exceptions=True)
    assert isinstance(done[1], asyncio.CancelledError)
    assert [entry.producer[0] for entry in await read_whole(log)] == [1, 2, 3]


# ---------------------------------------------------------------------- back pressure


@async_test
async def test_appends_beyond_the_bound_wait_before_they_get_an_offset() -> None:
    disk_turn = SlowDisk()
    log = await open_partition(run_blocking=disk_turn, queued_bytes=3 * ENTRY)
    disk_turn.free.clear()
    appends = [asyncio.create_task(log.append(batch(seed=seed))) for seed in range(10)]
    await settle()
    assert (log.staged_offset, log.has_room) == (3, False)
    disk_turn.free.set()
    await asyncio.gather(*appends)
    assert (log.next_offset, log.has_room) == (10, True)


@async_test
async def test_appends_that_waited_for_room_keep_their_order() -> None:
    disk_turn = SlowDisk()
    log = await open_partition(run_blocking=disk_turn, queued_bytes=2 * ENTRY)
    appends: list[asyncio.Task[StoredBatch]] = []
    for seed in range(60):
        if seed % 7 == 0:
            disk_turn.free.clear()
        appends.append(asyncio.create_task(log.append(batch(seed=seed))))
        for _ in range(seed % 4):
            await asyncio.sleep(0)
        disk_turn.free.set()
    entries = await asyncio.gather(*appends)
    assert [entry.base_offset for entry in entries] == list(range(60))


@async_test
async def test_one_who_gives_up_waiting_for_room_lets_the_others_on() -> None:
    disk_turn = SlowDisk()
    log = await open_partition(run_blocking=disk_turn, queued_bytes=1)
    disk_turn.free.clear()
    appends = [asyncio.create_task(log.append(batch(seed=seed))) for seed in range(4)]
    await settle()
    appends[1].cancel()
    await settle()
    disk_turn.free.set()
    done = await asyncio.gather(*appends, return_exceptions=True)
    assert [isinstance(result, StoredBatch) for result in done] == [True, False, True, True]
    assert [entry.producer[0] for entry in await read_whole(log)] == [1, 3, 4]


# ---------------------------------------------------------------------- failure


@async_test
async def test_a_failure_tells_everyone_who_waits_and_all_who_come_later() -> None:
    disk, disk_turn = SimulatedDisk(1), SlowDisk()
    log = await open_partition(disk, run_blocking=disk_turn, queued_bytes=3 * ENTRY)
    await log.append(batch(seed=0))
    disk.fail("sync", errno.EIO)
    disk_turn.free.clear()
    taken = [asyncio.create_task(log.append(batch(seed=seed))) for seed in (1, 2)]
    await settle()
    behind = [asyncio.create_task(log.append(batch(seed=seed))) for seed in range(3, 8)]
    await settle()
    disk_turn.free.set()
    results = await asyncio.gather(*taken, *behind, return_exceptions=True)
    assert [type(result) for result in results] == [LogFailed] * 7
    with pytest.raises(LogFailed):
        await log.append(batch(seed=9))
    with pytest.raises(LogFailed):
        await log.checkpoint()
    assert log.failure is not None
    assert len(await read_whole(log)) == log.next_offset == 1


@async_test
async def test_an_error_that_is_not_the_disks_leaves_nobody_waiting() -> None:
    async def broken(call: Callable[[], T]) -> T:
        raise RuntimeError("no thread to run it in")

    disk = SimulatedDisk(1)
    log = PartitionLog(open_log(disk), ManualClock(), broken)
    with pytest.raises(LogFailed, match="no thread"):
        await log.append(batch(seed=1))
    with pytest.raises(LogFailed):
        await log.append(batch(seed=2))


@async_test
async def test_a_failure_during_upkeep_tells_those_who_wait_too() -> None:
    disk, disk_turn = SimulatedDisk(1), SlowDisk()
    log = await open_partition(disk, run_blocking=disk_turn)
    disk.fail("append", errno.ENOSPC)
    disk_turn.free.clear()
    checkpoint = asyncio.create_task(log.checkpoint())
    append = asyncio.create_task(log.append(batch(seed=1)))
    await settle()
    disk_turn.free.set()
    results = await asyncio.gather(checkpoint, append, return_exceptions=True)
    assert LogFailed in [type(result) for result in results]
    assert log.failure is not None
    with pytest.raises(LogFailed):
        await log.append(batch(seed=2))


@async_test
async def test_a_log_that_failed_is_closed_without_an_error_and_opens_again() -> None:
    disk = SimulatedDisk(1)
    log = await open_partition(disk)
    disk.fail("sync", errno.EIO)
    with pytest.raises(LogFailed):
        await log.append(batch(seed=1))
    await log.close()
    log = await open_partition(disk)
    assert (await log.append(batch(seed=2))).base_offset == 1


# ---------------------------------------------------------------------- interval and os


@async_test
async def test_with_interval_an_append_is_synced_within_the_interval(syncs: list[str]) -> None:
    clock = ManualClock()
    log = await open_partition(clock=clock, durability=Durability.INTERVAL, sync_interval_ms=50)
    syncs.clear()
    await log.append(batch(seed=1))
    await clock.advance(0.049)
    await log.append(batch(seed=2))
    assert (log.durable_offset, log.next_offset, syncs) == (0, 2, [])
    await clock.advance(0.001)
    assert (log.durable_offset, len(syncs)) == (2, 1)


@async_test
async def test_with_interval_an_idle_log_is_not_synced(syncs: list[str]) -> None:
    clock = ManualClock()
    log = await open_partition(clock=clock, durability=Durability.INTERVAL, sync_interval_ms=50)
    await log.append(batch(seed=1))
    await clock.advance(0.05)
    syncs.clear()
    await clock.advance(10)
    assert (syncs, clock.sleepers) == ([], 0)
    await log.append(batch(seed=2))
    await clock.advance(0.05)
    assert log.durable_offset == 2


@async_test
async def test_with_interval_an_append_during_a_sync_is_synced_by_the_next() -> None:
    clock, disk_turn = ManualClock(), SlowDisk()
    log = await open_partition(
        clock=clock, run_blocking=disk_turn, durability=Durability.INTERVAL, sync_interval_ms=50
    )
    await log.append(batch(seed=1))
    disk_turn.free.clear()
    await clock.advance(0.05)
    _, acknowledged = log.submit(batch(seed=2))
    await settle()
    disk_turn.free.set()
    await acknowledged
    assert (log.durable_offset, log.next_offset) == (1, 2)
    await clock.advance(0.05)
    assert log.durable_offset == 2


@async_test
async def test_with_interval_a_sync_that_fails_stops_the_log() -> None:
    clock, disk = ManualClock(), SimulatedDisk(1)
    log = await open_partition(disk, clock, durability=Durability.INTERVAL, sync_interval_ms=50)
    await log.append(batch(seed=1))
    disk.fail("sync", errno.EIO)
    await clock.advance(0.05)
    with pytest.raises(LogFailed):
        await log.append(batch(seed=2))
    assert len(await read_whole(log)) == 1


@async_test
async def test_with_os_only_closing_syncs(syncs: list[str]) -> None:
    clock, disk = ManualClock(), SimulatedDisk(1)
    log = await open_partition(disk, clock, durability=Durability.OS)
    syncs.clear()
    await log.append(batch(seed=1))
    await clock.advance(3600)
    assert (syncs, log.durable_offset) == ([], 0)
    await log.close()
    disk.crash()
    assert len(read_all(open_log(disk))) == 1


@async_test
async def test_a_log_told_to_sync_by_interval_syncs_what_it_had_not() -> None:
    clock = ManualClock()
    log = await open_partition(clock=clock, durability=Durability.OS)
    await log.append(batch(seed=1))
    log.reconfigure(msgspec.structs.replace(SMALL, durability=Durability.INTERVAL))
    await clock.advance(0.05)
    assert log.durable_offset == 1


# ---------------------------------------------------------------------- closing


@pytest.mark.parametrize("durability", list(Durability))
def test_closing_finishes_what_was_submitted(durability: Durability) -> None:
    @async_test
    async def closing() -> None:
        disk = SimulatedDisk(1)
        log = await open_partition(disk, durability=durability)
        submitted = [log.submit(batch(seed=seed))[1] for seed in range(5)]
        await log.close()
        assert [entry.base_offset for entry in await asyncio.gather(*submitted)] == list(range(5))
        disk.crash()
        assert len(read_all(open_log(disk))) == 5

    closing()


@async_test
async def test_a_closed_log_refuses_appends_also_from_those_who_waited_for_room() -> None:
    disk_turn = SlowDisk()
    log = await open_partition(run_blocking=disk_turn, queued_bytes=ENTRY)
    disk_turn.free.clear()
    first, second = (asyncio.create_task(log.append(batch(seed=seed))) for seed in (1, 2))
    await settle()
    closing = asyncio.create_task(log.close())
    await settle()
    disk_turn.free.set()
    await closing
    results = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(result) for result in results] == [StoredBatch, LogClosed]
    with pytest.raises(LogClosed):
        log.submit(batch(seed=3))
    with pytest.raises(LogClosed):
        await log.read(Offset(0))
    with pytest.raises(LogClosed):
        await log.checkpoint()


@async_test
async def test_closing_twice_is_closing_once() -> None:
    log = await open_partition()
    await log.close()
    await log.close()


@async_test
async def test_closing_while_the_interval_sync_runs_waits_for_it() -> None:
    clock, thread, disk = ManualClock(), HeldThread(), SimulatedDisk(1)
    log = await open_partition(
        disk, clock, run_blocking=thread, durability=Durability.INTERVAL, sync_interval_ms=50
    )
    await log.append(batch(seed=1))
    thread.hold = True
    await clock.advance(0.05)
    await thread.wait_until_begun()
    closing = asyncio.create_task(log.close())
    await settle()
    assert not closing.done()
    thread.release.set()
    await closing
    disk.crash()
    assert len(read_all(open_log(disk))) == 1


@async_test
async def test_a_close_that_fails_sends_home_those_who_wait_for_more() -> None:
    clock, disk = ManualClock(), SimulatedDisk(1)
    log = await open_partition(disk, clock)
    waiting = asyncio.create_task(log.wait_beyond(Offset(0), 1000))
    await settle()
    disk.fail("rename", errno.EIO)
    with pytest.raises(LogFailed):
        await log.close()
    assert await waiting is False


# ---------------------------------------------------------------------- cancelled upkeep


@pytest.mark.parametrize("upkeep", ["checkpoint", "retain", "truncate", "close"])
def test_upkeep_that_is_cancelled_goes_on_and_breaks_nobody(upkeep: str) -> None:
    @async_test
    async def cancelling() -> None:
        disk, thread = SimulatedDisk(1), HeldThread()
        log = await open_partition(disk, run_blocking=thread)
        await log.append(batch(seed=1))
        calls: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
            "checkpoint": log.checkpoint,
            "retain": lambda: log.retain(RetentionLimits(messages=0)),
            "truncate": lambda: log.truncate(Offset(0)),
            "close": log.close,
        }
        thread.hold = True
        task = asyncio.create_task(calls[upkeep]())
        await thread.wait_until_begun()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        following = asyncio.create_task(log.append(batch(seed=2)))
        await settle()
        thread.release.set()
        if upkeep == "close":
            with pytest.raises(LogClosed):
                await following
        else:
            assert (await following).base_offset == (0 if upkeep == "truncate" else 1)
        await log.close()

    cancelling()


# ---------------------------------------------------------------------- waiting for more


@async_test
async def test_waiting_for_what_is_there_does_not_wait() -> None:
    log = await open_partition()
    await log.append(batch(seed=1))
    assert await log.wait_beyond(Offset(0), 1000) is True


@pytest.mark.parametrize("timeout_s", [0, -1])
def test_waiting_no_time_does_not_wait(timeout_s: float) -> None:
    @async_test
    async def waiting() -> None:
        clock = ManualClock()
        log = await open_partition(clock=clock)
        assert await log.wait_beyond(Offset(0), timeout_s) is False

    waiting()


@async_test
async def test_waiting_ends_when_something_can_be_read() -> None:
    clock, disk_turn = ManualClock(), SlowDisk()
    log = await open_partition(clock=clock, run_blocking=disk_turn)
    here, further = (asyncio.create_task(log.wait_beyond(Offset(n), 1000)) for n in (0, 1))
    disk_turn.free.clear()
    log.submit(batch(seed=1))
    await settle()
    assert not here.done()
    disk_turn.free.set()
    assert await here is True
    await settle()
    assert not further.done()
    await log.append(batch(seed=2))
    assert await further is True
    await settle()
    assert clock.sleepers == 0


@async_test
async def test_waiting_ends_with_its_time() -> None:
    clock = ManualClock()
    log = await open_partition(clock=clock)
    waiting = asyncio.create_task(log.wait_beyond(Offset(0), 20))
    await clock.advance(19.9)
    assert not waiting.done()
    await clock.advance(0.1)
    assert await waiting is False


@async_test
async def test_waiting_that_is_cancelled_leaves_nothing_behind() -> None:
    clock = ManualClock()
    log = await open_partition(clock=clock)
    waiting = asyncio.create_task(log.wait_beyond(Offset(0), 20))
    await settle()
    waiting.cancel()
    await settle()
    assert clock.sleepers == 0
    await log.append(batch(seed=1))


@async_test
async def test_closing_ends_the_waiting() -> None:
    log = await open_partition()
    waiting = asyncio.create_task(log.wait_beyond(Offset(0), 1000))
    await settle()
    await log.close()
    assert await waiting is False


# ---------------------------------------------------------------------- reading and upkeep


@async_test
async def test_readers_at_the_tail_touch_no_disk() -> None:
    disk_turn = SlowDisk()
    log = await open_partition(run_blocking=disk_turn, tail_bytes=1 << 20)
    stored = await log.append(batch(seed=1))
    disk_turn.free.clear()
    assert await log.read(Offset(0)) == [stored]
    assert await log.read(Offset(1)) == []


@async_test
async def test_reads_by_offset_and_by_time_go_to_the_disk_beyond_the_tail() -> None:
    clock = ManualClock()
    log = await open_partition(clock=clock)
    stored = []
    for seed in range(20):
        stored.append(await log.append(batch(600, seed=seed)))
        await clock.advance(0.3)
    assert await read_whole(log) == [facts(entry) for entry in stored]
    for entry in stored:
        assert await log.offset_at(entry.append_time) == entry.base_offset
    assert await log.offset_at(Microseconds(stored[-1].append_time + 1)) == 20


@async_test
async def test_what_was_read_a_moment_ago_is_not_read_from_the_files_again() -> None:
    disk_turn = SlowDisk()
    log = await open_partition(run_blocking=disk_turn)
    stored = [await log.append(batch(600, seed=seed)) for seed in range(3)]
    whole = await log.read(Offset(0), 1 << 20)
    disk_turn.free.clear()
    assert [facts(entry) for entry in whole] == [facts(entry) for entry in stored]
    assert await log.read(Offset(1), 1 << 20) == whole[1:]
    assert await log.read(Offset(1), 1) == whole[1:2]


@async_test
async def test_what_was_read_before_a_truncation_is_not_taken_for_what_follows_it() -> None:
    log = await open_partition()
    for seed in range(2):
        await log.append(batch(seed=seed))
    assert len(await log.read(Offset(0))) == 2
    await log.truncate(Offset(1))
    after = await log.append(batch(seed=7))
    assert [facts(entry) for entry in await log.read(Offset(1))] == [facts(after)]


@async_test
async def test_retention_lets_go_of_what_was_read() -> None:
    log = await open_partition()
    await log.append(batch(seed=1))
    assert await log.read(Offset(0)) == log._recent.read(Offset(0), 1)
    await log.retain(RetentionLimits(messages=0))
    assert log._recent.read(Offset(0), 1) is None


@async_test
async def test_retention_drops_the_newest_segment_too_and_the_log_goes_on() -> None:
    disk = SimulatedDisk(1)
    log = await open_partition(disk)
    await log.append(batch(seed=1))
    assert await log.retain(RetentionLimits(messages=0)) == 1
    with pytest.raises(OffsetOutOfRange) as caught:
        await log.read(Offset(0))
    assert caught.value.details == {"first_offset": 1, "next_offset": 1}
    assert (await log.append(batch(seed=2))).base_offset == 1
    assert [name for name in disk.list_folder(FOLDER) if name.startswith(f"{0:020d}")] == []


@async_test
async def test_truncation_waits_for_what_was_submitted_and_appends_wait_for_it() -> None:
    disk_turn = SlowDisk()
    log = await open_partition(run_blocking=disk_turn)
    await log.append(batch(seed=0))
    disk_turn.free.clear()
    _, submitted = log.submit(batch(seed=1), LeaderEpoch(3))
    truncation = asyncio.create_task(log.truncate(Offset(1)))
    await settle()
    disk_turn.free.set()
    assert await submitted
    disk_turn.free.clear()
    await settle()
    assert not log.has_room
    with pytest.raises(LogError, match="truncated"):
        log.submit(batch(seed=2))
    append = asyncio.create_task(log.append(batch(seed=3)))
    await settle()
    disk_turn.free.set()
    assert await truncation == 1
    assert (await append).base_offset == 1
    assert [entry.producer[0] for entry in await read_whole(log)] == [1, 4]


@async_test
async def test_appends_and_truncations_at_the_same_time_leave_a_whole_log() -> None:
    log = await open_partition(run_blocking=in_thread)
    for seed in range(0, 60, 6):
        appends = [asyncio.create_task(log.append(batch(700, seed=seed + n))) for n in range(6)]
        await asyncio.sleep(0)
        kept = await log.truncate(Offset(log.next_offset * 2 // 3))
        assert kept <= log.next_offset
        await asyncio.gather(*appends)
    await log.append(batch(seed=99))
    entries = await read_whole(log)
    assert entries[0].base_offset == 0
    assert all(one.next_offset == other.base_offset for one, other in pairwise(entries))
    await log.close()
