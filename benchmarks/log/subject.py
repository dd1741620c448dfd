"""What is measured: batches made beforehand, and a log on a disk that counts its syncs."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pyarrow as pa

from quiver.log.disk.disk import AppendFile
from quiver.log.disk.disk_threads import DiskThreads
from quiver.log.disk.real_disk import RealAppendFile, RealDisk
from quiver.log.partition_log import PartitionLog
from quiver.log.settings import LogSettings
from quiver.model.batch import UnstoredBatch
from quiver.model.clock import SystemClock
from quiver.model.envelope import seal_batch
from quiver.model.schema import PAYLOAD, schema_of

MB = 1_000_000
GB = 1_000_000_000
_THREADS = 8


def ready_batch(messages: int, message_bytes: int, seed: int = 0) -> UnstoredBatch:
    """A batch of random payloads, as a producer would have sealed it."""
    rng = random.Random(seed)
    payloads = pa.array([rng.randbytes(message_bytes) for _ in range(messages)], pa.binary())
    body = pa.record_batch([payloads], schema=schema_of(PAYLOAD)).serialize()
    return seal_batch(body.to_pybytes(), messages, PAYLOAD)


class CountingDisk(RealDisk):
    """The real disk, and how many syncs of any kind it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs = 0

    def sync_folder(self, path: str) -> None:
        self.syncs += 1
        super().sync_folder(path)

    def open_append(self, path: str) -> AppendFile:
        file = super().open_append(path)
        assert isinstance(file, RealAppendFile)
        return _CountingFile(file, self)


class _CountingFile(RealAppendFile):
    __slots__ = ("_disk",)

    def __init__(self, file: RealAppendFile, disk: CountingDisk) -> None:
        super().__init__(file._path, file._descriptor)
        self._disk = disk

    def _sync(self) -> None:
        self._disk.syncs += 1
        super()._sync()


@asynccontextmanager
async def open_log(folder: str, disk: RealDisk | None = None) -> AsyncIterator[PartitionLog]:
    """A log with default settings, on threads as a node has them; closed at the end."""
    threads = DiskThreads(_THREADS)
    try:
        log = await PartitionLog.open(
            f"{folder}/log",
            disk=disk or RealDisk(),
            clock=SystemClock(),
            settings=LogSettings(),
            run_blocking=threads,
        )
        try:
            yield log
        finally:
            await log.close()
    finally:
        threads.close()
