"""Snapshots that are entries of the state log: whoever has the log has them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from quiver.broker.delivery import snapshots as module
from quiver.broker.delivery.snapshots import LoggedSnapshots
from quiver.log.partition_log import PartitionLog
from quiver.log.retention import RetentionLimits
from quiver.model.ids import Offset
from quiver.testing.clock import ManualClock
from quiver.testing.disk import SimulatedDisk
from tests.aio import async_test
from tests.unit.broker.broker_doubles import Gate
from tests.unit.log.small_logs import FOLDER, SMALL, batch


@asynccontextmanager
async def opened(disk: SimulatedDisk) -> AsyncIterator[PartitionLog]:
    log = await PartitionLog.open(
        FOLDER, disk=disk, clock=ManualClock(), settings=SMALL, run_blocking=Gate()
    )
    try:
        yield log
    finally:
        await log.close()


async def loaded(log: PartitionLog, name: str) -> bytes:
    return await (await LoggedSnapshots.open(log, Gate())).load(name)


@async_test
async def test_the_newest_of_each_name_is_found_by_whoever_opens_the_log() -> None:
    async with opened(SimulatedDisk(0)) as log:
        snapshots = await LoggedSnapshots.open(log, Gate())
        assert await snapshots.load("state") == b""
        for number in range(3):
            await snapshots.save("state", lambda number=number: b"state %d" % number)  # type: ignore[misc]
            log.submit(batch())
        await snapshots.save("producers", lambda: b"")
        assert await loaded(log, "state") == b"state 2"
        assert await loaded(log, "producers") == b""


@async_test
async def test_a_large_one_is_put_together_from_its_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_PART_BYTES", 1000)
    data = Random(0).randbytes(12_345)
    async with opened(SimulatedDisk(0)) as log:
        snapshots = await LoggedSnapshots.open(log, Gate())
        await snapshots.save("state", lambda: data)
        assert log.next_offset == 13
        assert await snapshots.load("state") == data
        assert await loaded(log, "state") == data


@async_test
async def test_one_whose_end_was_never_written_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_PART_BYTES", 10)
    async with opened(SimulatedDisk(0)) as log:
        await (await LoggedSnapshots.open(log, Gate())).save("state", lambda: b"whole")
        await (await LoggedSnapshots.open(log, Gate())).save("state", lambda: b"more than a part")
        await log.truncate(Offset(2))
        assert await loaded(log, "state") == b"whole"


@async_test
async def test_one_whose_beginning_was_dropped_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_PART_BYTES", 4096)
    async with opened(SimulatedDisk(0)) as log:
        await (await LoggedSnapshots.open(log, Gate())).save("state", lambda: bytes(9000))
        await log.retain(RetentionLimits(before=Offset(1)))
        assert log.start_offset == 1
        assert await loaded(log, "state") == b""


@async_test
async def test_what_was_saved_before_is_saved_anew_before_it_is_dropped() -> None:
    async with opened(SimulatedDisk(0)) as log:
        snapshots = await LoggedSnapshots.open(log, Gate())
        await snapshots.save("producers", lambda: b"sessions")
        for _ in range(40):
            await log.submit(batch(300))[1]
        offset = log.next_offset
        await snapshots.save("state", lambda: b"state")
        needed = await snapshots.needed_from(offset)
        await log.retain(RetentionLimits(before=needed))
        assert log.start_offset > 0
        assert await loaded(log, "producers") == b"sessions"
        assert await loaded(log, "state") == b"state"
