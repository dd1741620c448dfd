"""Reads of a log whose files retention removes or truncation replaces at that very moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from quiver.errors import OffsetOutOfRange
from quiver.log.disk.real_disk import RealDisk
from quiver.log.partition_log import PartitionLog
from quiver.log.retention import RetentionLimits
from quiver.log.segmented_log import SegmentedLog
from quiver.model.ids import Microseconds, Offset
from quiver.testing.clock import ManualClock
from quiver.testing.disk import SimulatedDisk
from tests.aio import async_test
from tests.unit.log.small_logs import (
    SMALL,
    SetClock,
    batch,
    facts,
    open_log,
    read_all,
    segment_count,
)


class DisturbedDisk(SimulatedDisk):
    """Does something behind the back of the reader, before its operation number ``at``."""

    def __init__(self) -> None:
        super().__init__(seed=1)
        self.disturbance: Callable[[], object] | None = None
        self.at = 0

    def read(self, path: str) -> bytes:
        self._disturb()
        return super().read(path)

    def map(self, path: str, position: int, length: int) -> memoryview:
        self._disturb()
        return super().map(path, position, length)

    def _disturb(self) -> None:
        if self.disturbance is not None:
            self.at -= 1
            if self.at < 0:
                disturbance, self.disturbance = self.disturbance, None
                disturbance()


def retained(log: SegmentedLog) -> None:
    log.retain(RetentionLimits(before=Offset(6)))
    log.checkpoint()


def truncated(log: SegmentedLog) -> None:
    log.truncate(Offset(2))
    log.append([batch(700, seed=50 + seed) for seed in range(9)])


def disturbed_log(at: int, change: Callable[[SegmentedLog], None]) -> SegmentedLog:
    """A log of three segments of six entries, opened anew, that changes during the next read."""
    disk, clock = DisturbedDisk(), SetClock()
    log = open_log(disk, clock)
    for seed in range(18):
        log.append([batch(700, seed=seed)])
        clock.now_us += 100
    assert segment_count(log) == 3
    log.close()
    log = open_log(disk, clock)
    disk.at, disk.disturbance = at, lambda: change(log)
    return log


def answer(log: SegmentedLog, offset: int, bytes_max: int) -> object:
    """The entries at an offset, or the bounds that an error names."""
    try:
        return [facts(entry) for entry in log.read_disk(Offset(offset), bytes_max)]
    except OffsetOutOfRange as error:
        return error.details


@pytest.mark.parametrize("bytes_max", [300, 1 << 20])
@pytest.mark.parametrize("offset", [0, 1, 2, 5, 6, 11, 17, 18])
@pytest.mark.parametrize("change", [retained, truncated])
def test_a_read_during_retention_or_truncation_is_as_before_or_as_after(
    change: Callable[[SegmentedLog], None], offset: int, bytes_max: int
) -> None:
    undisturbed = disturbed_log(1000, change)
    before = answer(undisturbed, offset, bytes_max)
    change(undisturbed)
    after = answer(undisturbed, offset, bytes_max)
    for at in range(8):
        log = disturbed_log(at, change)
        assert answer(log, offset, bytes_max) in (before, after)


@pytest.mark.parametrize("change", [retained, truncated])
def test_a_read_by_time_during_retention_or_truncation_is_as_before_or_as_after(
    change: Callable[[SegmentedLog], None],
) -> None:
    times = [entry.append_time for entry in read_all(disturbed_log(1000, change))]
    for time in times[::4]:
        undisturbed = disturbed_log(1000, change)
        before = undisturbed.offset_at(Microseconds(time))
        change(undisturbed)
        after = undisturbed.offset_at(Microseconds(time))
        for at in range(8):
            found = disturbed_log(at, change).offset_at(Microseconds(time))
            assert found in (before, after)


@async_test
async def test_threads_that_read_while_retention_removes_see_data_or_the_new_start(
    tmp_path: Path,
) -> None:
    log = await PartitionLog.open(
        f"{tmp_path}/log", disk=RealDisk(), clock=ManualClock(), settings=SMALL
    )
    stop = False
    outcomes: set[str] = set()

    async def follow() -> None:
        while not stop:
            try:
                for entry in await log.read(log.start_offset, 500):
                    assert bytes(entry.body) == batch(900, seed=entry.sequence).body
                    outcomes.add("data")
                await log.offset_at(Microseconds(0))
            except OffsetOutOfRange:
                outcomes.add("gone")

    readers = [asyncio.create_task(follow()) for _ in range(4)]
    for first in range(0, 300, 10):
        await asyncio.gather(*(log.append(batch(900, seed=first + n)) for n in range(10)))
        await log.retain(RetentionLimits(messages=5))
    stop = True
    await asyncio.gather(*readers)
    await log.close()
    assert "data" in outcomes
