"""Appending with group commit, against a bare loop that writes and syncs as much in as many syncs."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Sequence

import uvloop

from benchmarks.harness.bench import Bench
from benchmarks.harness.machine import fdatasync_seconds
from benchmarks.harness.rounds import compare
from benchmarks.harness.row import Row, at_least, ratio_at_least
from benchmarks.log.subject import MB, CountingDisk, open_log, ready_batch
from quiver.log.partition_log import PartitionLog
from quiver.model.batch import UnstoredBatch
from quiver.model.envelope import ENVELOPE_SIZE

WRITERS = 16
WAITERS = (1, 8, 64, 256)
REFERENCE_WAITERS = 64
REFERENCE_SYNC_MS = 0.2
REFERENCE_RATE = 10_000


def append_in_batches(bench: Bench) -> list[Row]:
    batches = [ready_batch(100, 1_000, seed) for seed in range(WRITERS)]
    count = bench.pick(4_000, 64)
    entries = [bytes(ENVELOPE_SIZE) + bytes(batch.body) for batch in batches]
    megabytes = sum(len(entries[turn % WRITERS]) for turn in range(count)) / MB
    syncs = 0

    def log() -> float:
        nonlocal syncs
        seconds, syncs = _append(bench, batches, count)
        return megabytes / seconds

    def bare_loop() -> float:
        return megabytes / _write_bare(bench, entries, count, syncs)

    compared = compare(bench.pick(7, 1), log, bare_loop)
    return [
        Row(
            name=f"append batches of 100 x 1 KB, {WRITERS} writers",
            value=compared.value,
            unit="MB/s",
            yardstick=compared.yardstick,
            yardstick_name="os.write + os.fdatasync",
            ratio=compared.ratio,
            target=ratio_at_least(0.8),
            note=f"{1000 * megabytes / syncs:,.0f} KB for each sync, in both",
        )
    ]


def append_one_at_a_time(bench: Bench) -> list[Row]:
    """Acknowledged messages in a second, by how many writers wait at a time."""
    batches = [ready_batch(1, 1_000)]
    rates: dict[int, list[float]] = {waiters: [] for waiters in WAITERS}
    syncs: list[float] = []
    for _ in range(bench.pick(5, 1)):
        for waiters in WAITERS:
            count = bench.pick(min(30_000, 1_500 * waiters), 2 * waiters)
            seconds, _ = _append(bench, batches * waiters, count)
            rates[waiters].append(count / seconds)
        with bench.folder() as folder:
            syncs.append(1000 * fdatasync_seconds(folder))
    scale = min(1.0, REFERENCE_SYNC_MS / statistics.median(syncs))
    note = (
        f"target: {REFERENCE_RATE:,} msg/s where a 4 KB fdatasync takes {REFERENCE_SYNC_MS} ms, less "
        f"in proportion where it is slower; {statistics.median(syncs):.3f} ms between these rounds"
    )
    return [
        Row(
            name=f"append 1 message of 1 KB, {waiters} waiting",
            value=statistics.median(rates[waiters]),
            unit="msg/s",
            target=at_least(REFERENCE_RATE * scale) if waiters == REFERENCE_WAITERS else None,
            note=note if waiters == REFERENCE_WAITERS else "",
        )
        for waiters in WAITERS
    ]


def _append(bench: Bench, batches: Sequence[UnstoredBatch], count: int) -> tuple[float, int]:
    """Append ``count`` batches, a writer for each of ``batches``; seconds and syncs it took."""

    async def run(folder: str) -> tuple[float, int]:
        disk = CountingDisk()
        shares = [len(range(place, count, len(batches))) for place in range(len(batches))]
        async with open_log(folder, disk) as log:
            syncs, began = disk.syncs, time.perf_counter()
            await asyncio.gather(*map(_write, [log] * len(batches), batches, shares))
            return time.perf_counter() - began, disk.syncs - syncs

    with bench.folder() as folder:
        return uvloop.run(run(folder))


async def _write(log: PartitionLog, batch: UnstoredBatch, count: int) -> None:
    for _ in range(count):
        await log.append(batch)


def _write_bare(bench: Bench, entries: Sequence[bytes], count: int, syncs: int) -> float:
    """Write ``count`` entries to one file, with ``syncs`` evenly among them; the seconds it took."""
    with bench.folder() as folder:
        descriptor = os.open(f"{folder}/bare", os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            began = time.perf_counter()
            synced = 0
            for written in range(1, count + 1):
                os.write(descriptor, entries[written % len(entries)])
                if written * syncs // count > synced:
                    os.fdatasync(descriptor)
                    synced = written * syncs // count
            return time.perf_counter() - began
        finally:
            os.close(descriptor)
