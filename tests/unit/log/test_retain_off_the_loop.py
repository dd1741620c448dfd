"""Retention reads no file on the event loop: a cold disk would make every other partition wait."""

from __future__ import annotations

import threading
from pathlib import Path

from quiver.log.disk.real_disk import RealDisk
from quiver.log.partition_log import PartitionLog
from quiver.log.retention import RetentionLimits
from quiver.log.settings import LogSettings
from quiver.model.clock import SystemClock
from quiver.model.envelope import seal_batch
from quiver.model.schema import PAYLOAD
from tests.aio import async_test

SETTINGS = LogSettings(segment_bytes=4096)


class _WatchedDisk(RealDisk):
    """Remembers which threads have read from it."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: set[int] = set()

    def map(self, path: str, position: int, length: int) -> memoryview:
        self.readers.add(threading.get_ident())
        return super().map(path, position, length)


@async_test
async def test_retain_maps_no_segment_in_the_thread_of_the_loop(tmp_path: Path) -> None:
    folder, batch = str(tmp_path / "log"), seal_batch(bytes(5000), 1, PAYLOAD)
    disk = _WatchedDisk()
    log = await PartitionLog.open(folder, disk=disk, clock=SystemClock(), settings=SETTINGS)
    for _ in range(6):
        await log.append(batch)
    await log.close()

    log = await PartitionLog.open(folder, disk=disk, clock=SystemClock(), settings=SETTINGS)
    disk.readers.clear()
    assert await log.retain(RetentionLimits(bytes=12_000)) == 3
    assert disk.readers
    assert threading.get_ident() not in disk.readers
    await log.close()
