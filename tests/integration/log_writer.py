"""A process that appends to a log for as long as it lives, and says what was acknowledged.

Several writers append at once, each message naming its batch, so that whoever reads the log can tell
whole batches from parts and notice one that is missing or there twice. Meanwhile segments roll,
checkpoints are made and old segments dropped. The lines that it reports:

    open CUT               the log is open, and so many bytes of a torn write were cut
    drop BEFORE            from here on segments below this offset may go
    ack OFFSET SUM         the batch at this offset is stored; the sum is over its stored bytes
    failed ERROR           the disk is gone, as after a power cut, or what is on it is damaged
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from hashlib import sha256

import pyarrow as pa
import uvloop

from quiver.errors import LogError
from quiver.log.disk.disk import AppendFile, Bytes, Disk
from quiver.log.disk.real_disk import RealDisk
from quiver.log.files import LOG
from quiver.log.partition_log import PartitionLog
from quiver.log.retention import RetentionLimits
from quiver.log.settings import LogSettings
from quiver.model.batch import StoredBatch, UnstoredBatch
from quiver.model.clock import SystemClock
from quiver.model.envelope import seal_batch
from quiver.model.ids import Offset
from quiver.model.schema import PAYLOAD, schema_of
from tests.killable import report

WRITERS = 6
PAUSES = 0.25
"""Which part of the writes to a segment is interrupted; ten times fewer of the small files."""
KEPT_MESSAGES = 1_000
SETTINGS = LogSettings(
    segment_bytes=96 << 10,
    checkpoint_bytes=40 << 10,
    index_interval_bytes=4 << 10,
    window_bytes=64 << 10,
    tail_bytes=64 << 10,
)


class PausingDisk(RealDisk):
    """A disk that sometimes takes its time in the middle of a write, so that a crash tears it.

    Unless it is ``synced`` it also says that it has synced when it has not.
    """

    def __init__(self, rng: random.Random, synced: bool) -> None:
        super().__init__()
        self._rng = rng
        self._synced = synced

    def sync_folder(self, path: str) -> None:
        if self._synced:
            super().sync_folder(path)

    def open_append(self, path: str) -> AppendFile:
        rarely = PAUSES if path.endswith(LOG) else PAUSES / 10
        return _PausingFile(super().open_append(path), self._rng, rarely, self._synced)


class _PausingFile(AppendFile):
    def __init__(self, file: AppendFile, rng: random.Random, pauses: float, synced: bool) -> None:
        self._file = file
        self._rng = rng
        self._pauses = pauses
        self._synced = synced

    def append(self, buffers: Sequence[Bytes]) -> None:
        if self._rng.random() > self._pauses:
            self._file.append(buffers)
            return
        data = b"".join(buffers)
        middle = self._rng.randrange(len(data) + 1)
        self._file.append([data[:middle]])
        time.sleep(self._rng.uniform(0, 0.04))
        self._file.append([data[middle:]])

    def overwrite(self, position: int, data: Bytes) -> None:
        self._file.overwrite(position, data)

    def sync(self) -> None:
        if self._synced:
            self._file.sync()

    def size(self) -> int:
        return self._file.size()

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def close(self) -> None:
        self._file.close()


def main(folder: str, run: int, seed: int, synced: bool = True) -> None:
    """Append to the log in ``folder`` until the process is killed or the disk fails."""
    rng = random.Random(seed)
    try:
        uvloop.run(_write(folder, run, rng, PausingDisk(rng, synced)))
    except* (LogError, OSError) as failures:
        report("failed", type(failures.exceptions[0]).__name__)


def stored_sum(entry: StoredBatch) -> str:
    return sha256(b"".join(entry.buffers())).hexdigest()


async def _write(folder: str, run: int, rng: random.Random, disk: Disk) -> None:
    log = await PartitionLog.open(folder, disk=disk, clock=SystemClock(), settings=SETTINGS)
    report("open", log.recovery_cut_bytes)
    async with asyncio.TaskGroup() as tasks:
        for writer in range(WRITERS):
            own_rng = random.Random(rng.randbytes(8))
            tasks.create_task(_append_forever(log, f"{run}/{writer}", own_rng))
        tasks.create_task(_keep_up_forever(log, rng))


async def _append_forever(log: PartitionLog, name: str, rng: random.Random) -> None:
    number = 0
    while True:
        entry = await log.append(_batch(f"{name}/{number}", rng))
        report("ack", entry.base_offset, stored_sum(entry))
        number += 1


async def _keep_up_forever(log: PartitionLog, rng: random.Random) -> None:
    while True:
        await asyncio.sleep(rng.uniform(0, 0.02))
        if rng.random() < 0.5:
            await log.checkpoint()
        else:
            before = Offset(max(log.start_offset, log.next_offset - KEPT_MESSAGES))
            report("drop", before)
            await log.retain(RetentionLimits(before=before))


def _batch(name: str, rng: random.Random) -> UnstoredBatch:
    """A batch whose messages say which batch they are of, which one they are, and of how many."""
    count = rng.choice((1, 1, 2, 5, 20))
    filling = rng.randbytes(rng.choice((0, 10, 300, 1500) * 8 + (60_000,)))
    payloads = [f"{name} {row} {count} ".encode() + filling for row in range(count)]
    body = pa.record_batch([pa.array(payloads, pa.binary())], schema=schema_of(PAYLOAD)).serialize()
    return seal_batch(memoryview(body), count, PAYLOAD)
