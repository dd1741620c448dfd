"""A leader at work: followers are sent entries while it syncs them, and it confirms them after."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from quiver.aio import cancel_and_wait
from quiver.cluster.metadata.store import Put
from quiver.cluster.records import PartitionRecord, VersionedPartition, encode, partition_key
from quiver.cluster.replica.leader_driver import LeaderDriver
from quiver.cluster.replica.messages import Entries, NotLeading
from quiver.cluster.replica.replica_log import ReplicaLog
from quiver.cluster.replica.settings import ReplicaSettings
from quiver.errors import LeaderChanged, LogFailed
from quiver.log.retention import RetentionLimits
from quiver.log.settings import LogSettings
from quiver.model.envelope import entries_in
from quiver.model.ids import Offset
from quiver.testing.clock import ManualClock
from quiver.testing.disk import SimulatedDisk
from quiver.testing.memory_store import MemoryStore
from tests.aio import async_test, turns
from tests.unit.broker.broker_doubles import batch_of
from tests.unit.cluster.replica.test_rules import SESSIONS, A, B, C, P, epoch, fetch, record

TICK_S = ReplicaSettings().tick_s


class SlowDisk:
    """Runs disk work at once, or when it is let go on."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk(1)
        self.is_slow = False
        self._released = asyncio.Event()

    async def run_blocking(self, call: Callable[[], Any]) -> Any:
        if self.is_slow:
            await self._released.wait()
        return call()

    def release(self) -> None:
        self._released.set()


@asynccontextmanager
async def leader(
    clock: ManualClock | None = None,
    led: PartitionRecord | None = None,
    proven_until: Callable[[], float] = lambda: 1_000.0,
) -> AsyncIterator[tuple[LeaderDriver, SlowDisk]]:
    """A leader in epoch 3 with an empty log, whose two followers are in sync."""
    clock, led = clock or ManualClock(), led or record()
    slow, store = SlowDisk(), MemoryStore(ManualClock())
    held = await ReplicaLog.open(
        "/log", LogSettings(), disk=slow.disk, clock=clock, run_blocking=slow.run_blocking
    )
    await held.begin_epoch(epoch(3))
    revision = await store.commit([], [Put(partition_key(P), encode(led))])
    driver = LeaderDriver(
        P,
        A,
        VersionedPartition(led, revision),
        [held],
        store=store,
        clock=clock,
        settings=ReplicaSettings(),
        proven_until=proven_until,
    )
    driver.on_state(VersionedPartition(led, revision), SESSIONS)
    running = asyncio.create_task(driver.run())
    try:
        yield driver, slow
    finally:
        slow.release()
        await cancel_and_wait(running)
        await held.log.close()
        await store.close()


async def asked(driver: LeaderDriver, node: Any, at: int, last: int = 0) -> asyncio.Task[Any]:
    task = asyncio.create_task(driver.on_fetch(fetch(node, at, last=last, wait_s=5.0)))
    await turns()
    return task


@async_test
async def test_followers_are_sent_an_entry_while_the_leader_syncs_it() -> None:
    async with leader() as (driver, slow):
        waiting = [await asked(driver, node, 0) for node in (B, C)]
        slow.is_slow = True
        published = driver.publish(batch_of(b"one"))
        await turns()
        assert not published.stored.done()
        for reply in [task.result() for task in waiting]:
            assert isinstance(reply, Entries)
            assert [one.base_offset for one in entries_in(reply.data)] == [0]
            assert reply.watermark == 0


@async_test
async def test_nothing_is_confirmed_before_the_leader_has_synced_it() -> None:
    async with leader() as (driver, slow):
        slow.is_slow = True
        published = driver.publish(batch_of(b"one"))
        followers = [await asked(driver, node, 1, last=3) for node in (B, C)]
        assert driver.machine.logs[0].synced(B) == driver.machine.logs[0].synced(C) == 1
        assert not published.committed.done()
        slow.release()
        assert await published.committed is published.entry
        assert driver.watermark() == 1
        await cancel_and_wait(*followers)


@async_test
async def test_nothing_is_confirmed_before_all_in_sync_followers_have_it() -> None:
    async with leader() as (driver, _):
        published = driver.publish(batch_of(b"one"))
        await published.stored
        first = await asked(driver, B, 1, last=3)
        assert not published.committed.done()
        second = await asked(driver, C, 1, last=3)
        await published.committed
        await cancel_and_wait(first, second)


@async_test
async def test_what_a_failed_leader_has_sent_is_not_confirmed() -> None:
    async with leader() as (driver, slow):
        slow.is_slow = True
        published = driver.publish(batch_of(b"one"))
        followers = [await asked(driver, node, 1, last=3) for node in (B, C)]
        slow.disk.fail("sync", errno.EIO, times=1)
        slow.release()
        with pytest.raises(LeaderChanged):
            await published.committed
        published.stored.exception()
        for follower in followers:
            assert isinstance(await follower, NotLeading)
        assert driver.watermark() == 0


@async_test
async def test_one_look_is_enough_for_all_entries_of_a_commit() -> None:
    async with leader() as (driver, slow):
        await turns()
        slow.is_slow = True
        looks: list[int] = []
        look_at = driver._look_at
        driver._look_at = lambda log: (looks.append(log), look_at(log))  # type: ignore[method-assign,func-returns-value,assignment]
        published = [driver.publish(batch_of(b"one")) for _ in range(10)]
        await turns()
        slow.release()
        await published[-1].stored
        await turns()
        assert looks == [0]


@async_test
async def test_a_leader_whose_disk_fails_while_nothing_is_published_leads_no_more() -> None:
    async with leader() as (driver, slow):
        await driver.publish(batch_of(b"one")).stored
        slow.disk.fail("sync", errno.EIO, times=1)
        with pytest.raises(LogFailed):
            await driver._logs[0].log.checkpoint()
        assert driver.is_over


@async_test
async def test_the_watermark_rides_on_the_entries_that_come_next() -> None:
    async with leader() as (driver, _):
        published = driver.publish(batch_of(b"one"))
        waiting = [await asked(driver, node, 1, last=3) for node in (B, C)]
        await published.committed
        await turns()
        assert not any(task.done() for task in waiting)
        driver.publish(batch_of(b"two"))
        replies = [await task for task in waiting]
        assert [(reply.watermark, bool(reply.data)) for reply in replies] == [(1, True)] * 2


@async_test
async def test_a_leader_at_rest_stays_so_while_followers_only_ask_again() -> None:
    clock = ManualClock()
    async with leader(clock) as (driver, _):
        waiting = [await asked(driver, node, 0) for node in (B, C)]
        await clock.advance(TICK_S)
        assert driver._at_rest
        looks: list[int] = []
        driver._look = lambda: looks.append(1)  # type: ignore[method-assign]
        await cancel_and_wait(waiting[0])
        waiting.append(await asked(driver, B, 0))
        await clock.advance(2 * TICK_S)
        assert looks == []
        await cancel_and_wait(*waiting)


@async_test
async def test_a_follower_that_does_not_ask_again_leaves_the_in_sync_set() -> None:
    clock = ManualClock()
    async with leader(clock) as (driver, _):
        waiting = [await asked(driver, node, 0) for node in (B, C)]
        await clock.advance(TICK_S)
        assert driver._at_rest
        await cancel_and_wait(waiting[0])
        await clock.advance(ReplicaSettings().leader.lag_seconds_max + 2 * TICK_S)
        await turns()
        assert driver.machine.record.in_sync == (A, C)
        await cancel_and_wait(*waiting)


@async_test
async def test_a_leader_alone_confirms_what_it_synced_in_doubt_once_its_lease_is_renewed() -> None:
    clock, lease = ManualClock(), [1_000.0]
    alone = replace(record(A), replicas=(A,), min_in_sync=1)
    async with leader(clock, alone, lambda: lease[0]) as (driver, slow):
        await turns()
        assert driver._at_rest
        slow.is_slow = True
        published = driver.publish(batch_of(b"one"))
        lease[0] = clock.monotonic()
        driver.on_doubt()
        slow.release()
        await published.stored
        await clock.advance(3 * TICK_S)
        assert not published.committed.done()
        lease[0] = 1_000.0
        await clock.advance(2 * TICK_S)
        await turns()
        assert published.committed.done()
        assert driver._at_rest


async def says_start(driver: LeaderDriver, node: Any, start: int) -> asyncio.Task[Any]:
    """A follower that has everything says where its log begins, and waits for more."""
    question = replace(fetch(node, 4, last=3, watermark=4, wait_s=5.0), start=Offset(start))
    task = asyncio.create_task(driver.on_fetch(question))
    await turns()
    return task


@async_test
async def test_the_start_moves_once_the_logs_of_all_in_sync_followers_begin_there() -> None:
    clock = ManualClock()
    async with leader(clock) as (driver, _):
        log = driver._logs[0].log
        published = driver.publish(batch_of(b"one", b"two", b"three", b"four"))
        waiting = [await says_start(driver, node, 0) for node in (B, C)]
        await published.committed
        retention = asyncio.create_task(driver.retain(RetentionLimits(messages=1)))
        await clock.advance(ReplicaSettings().watermark_delay_s)
        assert [task.result().start for task in waiting] == [3, 3], "they are told"
        waiting = [await says_start(driver, B, 3)]
        assert (log.start_offset, retention.done()) == (0, False)
        waiting.append(await says_start(driver, C, 3))
        assert await retention == log.start_offset == 3
        assert log.stored_from == 0
        await cancel_and_wait(*waiting)


@async_test
async def test_the_start_stays_if_a_follower_does_not_say_in_time_that_its_log_begins_there() -> (
    None
):
    clock = ManualClock()
    async with leader(clock) as (driver, _):
        published = driver.publish(batch_of(b"one", b"two", b"three", b"four"))
        waiting = [await says_start(driver, node, 0) for node in (B, C)]
        await published.committed
        retention = asyncio.create_task(driver.retain(RetentionLimits(messages=1)))
        await turns()
        waiting.append(await says_start(driver, B, 3))
        await clock.advance(2.5)
        assert await retention == driver._logs[0].log.start_offset == 0
        await cancel_and_wait(*waiting)
