"""Which writes may run on the event loop."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import TypeVar

import pytest

from quiver.errors import LogFailed
from quiver.log.disk.inline_policy import QUICK_S, SMALL_BYTES, STALL_S, InlinePolicy
from quiver.log.partition_log import PartitionLog
from quiver.log.settings import LogSettings
from quiver.testing.clock import ManualClock
from quiver.testing.disk import SimulatedDisk
from tests.aio import async_test
from tests.unit.log.small_logs import batch

T = TypeVar("T")
LONE = (1, 1000)


def quick_policy(clock: ManualClock | None = None) -> InlinePolicy:
    policy = InlinePolicy(clock or ManualClock())
    policy.took(QUICK_S / 2)
    return policy


class TestPolicy:
    def test_nothing_is_allowed_before_a_write_was_seen(self) -> None:
        policy = InlinePolicy(ManualClock())
        assert not policy.allows(*LONE)
        policy.took(QUICK_S / 2)
        assert policy.allows(*LONE)

    def test_a_large_write_goes_to_a_thread(self) -> None:
        assert quick_policy().allows(1, SMALL_BYTES)
        assert not quick_policy().allows(1, SMALL_BYTES + 1)

    @async_test
    async def test_writes_that_wait_together_go_to_a_thread_for_a_while(self) -> None:
        clock = ManualClock()
        policy = quick_policy(clock)
        assert not policy.allows(2, 1000)
        assert not policy.allows(*LONE)
        await clock.advance(0.1)
        assert policy.allows(*LONE)

    def test_a_disk_that_is_slow_on_average_gets_threads(self) -> None:
        policy = quick_policy()
        for _ in range(200):
            policy.took(2 * QUICK_S)
        assert not policy.allows(*LONE)
        for _ in range(200):
            policy.took(QUICK_S / 2)
        assert policy.allows(*LONE)

    def test_one_slow_write_among_quick_ones_changes_nothing(self) -> None:
        policy = quick_policy()
        policy.took(5 * QUICK_S)
        assert policy.allows(*LONE)

    @async_test
    async def test_after_a_stall_there_is_a_pause(self) -> None:
        clock = ManualClock()
        policy = quick_policy(clock)
        policy.took(2 * STALL_S)
        for _ in range(200):
            policy.took(QUICK_S / 2)
        assert not policy.allows(*LONE)
        await clock.advance(2.0)
        assert policy.allows(*LONE)


class Threads:
    """Runs calls at once and counts them, as disk threads with a policy."""

    def __init__(self) -> None:
        self.inline = quick_policy()
        self.calls = 0

    async def __call__(self, call: Callable[[], T], /) -> T:
        self.calls += 1
        await asyncio.sleep(0)
        return call()


async def open_log(threads: Threads, disk: SimulatedDisk, **settings: int) -> PartitionLog:
    for is_new in (True, False):  # the first commit of a new log is for a thread
        log = await PartitionLog.open(
            "log",
            disk=disk,
            clock=ManualClock(),
            settings=LogSettings(**settings),
            run_blocking=threads,
        )
        if is_new:
            await log.close()
    threads.calls = 0
    return log


class TestCommits:
    @async_test
    async def test_the_first_append_to_a_new_log_goes_to_a_thread(self) -> None:
        threads = Threads()
        log = await PartitionLog.open(
            "new",
            disk=SimulatedDisk(1),
            clock=ManualClock(),
            settings=LogSettings(),
            run_blocking=threads,
        )
        for calls in (1, 0):
            threads.calls = 0
            await log.append(batch(seed=calls))
            assert threads.calls == calls

    @async_test
    async def test_a_lone_append_needs_no_thread(self) -> None:
        threads = Threads()
        log = await open_log(threads, SimulatedDisk(1))
        stored = await log.append(batch(seed=1))
        assert threads.calls == 0
        assert log.durable_offset == stored.next_offset == log.next_offset

    @async_test
    async def test_appends_of_the_same_moment_share_a_commit_in_a_thread(self) -> None:
        threads = Threads()
        log = await open_log(threads, SimulatedDisk(1))
        await asyncio.gather(*(log.append(batch(seed=seed)) for seed in range(5)))
        assert threads.calls == 1
        assert log.durable_offset == log.next_offset == log.staged_offset

    @async_test
    async def test_a_new_segment_is_begun_in_a_thread(self) -> None:
        threads = Threads()
        log = await open_log(threads, SimulatedDisk(1), segment_bytes=4096)
        for seed in range(40):
            await log.append(batch(seed=seed))
        assert threads.calls >= 1
        assert log.durable_offset == log.next_offset

    @async_test
    async def test_a_write_that_fails_fails_the_append_and_the_log(self) -> None:
        disk = SimulatedDisk(1)
        log = await open_log(Threads(), disk)
        await log.append(batch(seed=1))
        disk.fail("append", errno.EIO)
        with pytest.raises(LogFailed):
            await log.append(batch(seed=2))
        with pytest.raises(LogFailed):
            await log.append(batch(seed=3))
        assert len(await log.read(log.start_offset)) == 1

    @async_test
    async def test_an_append_during_maintenance_waits_for_its_turn(self) -> None:
        threads = Threads()
        log = await open_log(threads, SimulatedDisk(1))
        checkpoint = asyncio.create_task(log.checkpoint())
        await asyncio.sleep(0)
        await log.append(batch(seed=1))
        await checkpoint
        assert threads.calls >= 1
        assert log.durable_offset == log.next_offset == log.staged_offset
