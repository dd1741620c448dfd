"""A process that appends to a log for as long as it lives, and says what was acknowledged.

Several writers append at once, each message naming its batch, so that whoever reads the log can tell
whole batches from parts and notice one that is missing or there twice. Meanwhile segments roll,
checkpoints are made and old segments dropped. The lines that it reports:

    open START NEXT        the log is open, with these offsets
    drop BEFORE            from here on segments below this offset may go
    ack OFFSET SUM         the batch at this offset is stored; the sum is over its stored bytes
"""

from __future__ import annotations

import asyncio
import random
from hashlib import sha256

import pyarrow as pa
import uvloop

from quiver.errors import LogFailed
from quiver.log.disk import AppendFile, Disk
from quiver.log.partition_log import PartitionLog
from quiver.log.real_disk import RealAppendFile, RealDisk
from quiver.log.retention import RetentionLimits
from quiver.log.settings import LogSettings
from quiver.model.batch import StoredBatch, UnstoredBatch
from quiver.model.clock import SystemClock
from quiver.model.envelope import seal_batch
from quiver.model.ids import Offset
from quiver.model.schema import PAYLOAD, schema_of
from tests.killable import report

WRITERS = 6
KEPT_MESSAGES = 2_000
SETTINGS = LogSettings(
    segment_bytes=96 << 10,
    checkpoint_bytes=40 << 10,
    index_interval_bytes=4 << 10,
    window_bytes=64 << 10,
    tail_bytes=64 << 10,
)


class UnsyncedDisk(RealDisk):
    """A disk that says it has synced and has not."""

    def sync_folder(self, path: str) -> None:
        pass

    def open_append(self, path: str) -> AppendFile:
        file = super().open_append(path)
        assert isinstance(file, RealAppendFile)
        return _UnsyncedFile(file)


class _UnsyncedFile(RealAppendFile):
    def __init__(self, file: RealAppendFile) -> None:
        super().__init__(file._descriptor)

    def sync(self) -> None:
        pass


def main(folder: str, run: int, seed: int, synced: bool = True) -> None:
    """Append to the log in ``folder`` until the process is killed or the disk fails."""
    disk = RealDisk() if synced else UnsyncedDisk()
    try:
        uvloop.run(_write(folder, run, random.Random(seed), disk))
    except* LogFailed:
        pass  # the power is gone


def stored_sum(entry: StoredBatch) -> str:
    return sha256(b"".join(entry.buffers())).hexdigest()


async def _write(folder: str, run: int, rng: random.Random, disk: Disk) -> None:
    log = await PartitionLog.open(folder, disk=disk, clock=SystemClock(), settings=SETTINGS)
    report("open", log.start_offset, log.next_offset)
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
    filling = rng.randbytes(rng.choice((0, 10, 300, 1500)))
    payloads = [f"{name} {row} {count} ".encode() + filling for row in range(count)]
    body = pa.record_batch([pa.array(payloads, pa.binary())], schema=schema_of(PAYLOAD)).serialize()
    return seal_batch(memoryview(body), count, PAYLOAD)
