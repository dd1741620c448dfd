"""Group commit on a node: when a write is handed to the disk, and what it takes along."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import TypeVar

import pytest

from quiver.errors import LogFailed
from quiver.log.disk.inline_policy import InlinePolicy
from quiver.log.group_commit import LEISURE_S
from quiver.log.partition_log import PartitionLog
from quiver.testing.clock import ManualClock
from quiver.testing.disk import SimulatedDisk
from tests.aio import async_test, turns
from tests.unit.broker.broker_doubles import Gate
from tests.unit.log.small_logs import FOLDER, SMALL, batch

T = TypeVar("T")


class DiskThread:
    """Runs calls one turn later, as a thread would at the earliest, and counts them."""

    def __init__(self, clock: ManualClock) -> None:
        self.inline = InlinePolicy(clock)  # it allows nothing before the first write
        self.calls = 0

    async def __call__(self, call: Callable[[], T], /) -> T:
        self.calls += 1
        await asyncio.sleep(0)
        return call()


@async_test
async def test_all_appends_of_one_turn_are_handed_to_the_disk_in_the_next() -> None:
    clock = ManualClock()
    thread = DiskThread(clock)
    log = await PartitionLog.open(
        FOLDER, disk=SimulatedDisk(1), clock=clock, settings=SMALL, run_blocking=thread
    )
    before = thread.calls
    stored = [log.submit(batch(seed=number))[1] for number in range(3)]
    await asyncio.sleep(0)
    assert thread.calls == before + 1
    later = log.submit(batch(seed=3))[1]
    assert [(await one).base_offset for one in (*stored, later)] == [0, 1, 2, 3]
    assert thread.calls == before + 2
    await log.close()


@async_test
async def test_the_end_of_each_commit_is_told_once_however_many_appends_it_has() -> None:
    clock, disk = ManualClock(), SimulatedDisk(1)
    log = await PartitionLog.open(
        FOLDER, disk=disk, clock=clock, settings=SMALL, run_blocking=DiskThread(clock)
    )
    told: list[int] = []
    log.commits.on_end = lambda: told.append(log.durable_offset)
    await asyncio.gather(*(log.submit(batch(seed=number))[1] for number in range(3)))
    assert told == [3]
    disk.fail("sync", errno.EIO, times=1)
    with pytest.raises(LogFailed):
        await log.submit(batch(seed=3))[1]
    assert told == [3, 3]
    await log.close()


@async_test
async def test_an_append_at_leisure_goes_with_the_next_one() -> None:
    clock = ManualClock()
    thread = DiskThread(clock)
    log = await PartitionLog.open(
        FOLDER, disk=SimulatedDisk(1), clock=clock, settings=SMALL, run_blocking=thread
    )
    before = thread.calls
    leisurely = log.submit(batch(seed=0), at_leisure=True)[1]
    await turns()
    assert thread.calls == before
    await log.submit(batch(seed=1))[1]
    assert leisurely.done()
    assert thread.calls == before + 1
    await log.close()


@async_test
async def test_an_append_at_leisure_is_stored_soon_also_if_none_follows() -> None:
    clock = ManualClock()
    log = await PartitionLog.open(
        FOLDER, disk=SimulatedDisk(1), clock=clock, settings=SMALL, run_blocking=DiskThread(clock)
    )
    first = log.submit(batch(seed=0), at_leisure=True)[1]
    await clock.advance(LEISURE_S / 2)
    await log.submit(batch(seed=1))[1]
    assert first.done()
    second = log.submit(batch(seed=2), at_leisure=True)[1]
    await clock.advance(LEISURE_S / 2)
    assert not second.done()  # the time of the first one
    await clock.advance(LEISURE_S / 2)
    assert second.done()
    await log.close()


@async_test
async def test_an_append_at_leisure_waits_while_the_disk_is_busy_with_others() -> None:
    clock, gate = ManualClock(), Gate()
    log = await PartitionLog.open(
        FOLDER, disk=SimulatedDisk(1), clock=clock, settings=SMALL, run_blocking=gate
    )
    gate.shut()
    urgent = log.submit(batch(seed=0))[1]
    await turns()
    leisurely = log.submit(batch(seed=1), at_leisure=True)[1]
    gate.open()
    await urgent
    await turns()
    assert not leisurely.done()
    await log.close()
    assert leisurely.done()
