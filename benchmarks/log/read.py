"""Reading a log as Arrow batches, from its files and from memory."""

from __future__ import annotations

import os
import time

from benchmarks.harness.bench import Bench
from benchmarks.harness.rounds import compare, median_of
from benchmarks.harness.row import Row, at_least
from benchmarks.log.subject import GB, ready_batch
from quiver.log.disk.real_disk import RealDisk
from quiver.log.files import LOG
from quiver.log.segmented_log import SegmentedLog
from quiver.log.settings import LogSettings
from quiver.model.clock import SystemClock
from quiver.model.ids import Offset

_PIECE = 1 << 20
_GOAL = 1.0
_SHARE = 0.7


def read_the_disk(bench: Bench) -> list[Row]:
    with bench.folder() as folder:
        log = _fill(folder, bench.pick(10_000, 100))
        try:
            compared = compare(
                bench.pick(7, 1), lambda: _read_arrow(log), lambda: _read_raw(log.folder)
            )
        finally:
            log.close()
    return [
        Row(
            name="read the disk as Arrow, 100 x 1 KB",
            value=compared.value,
            unit="GB/s",
            yardstick=compared.yardstick,
            yardstick_name="readinto, 1 MiB at a time",
            ratio=compared.ratio,
            target=at_least(min(_GOAL, _SHARE * compared.yardstick)),
            note=f"target: {_GOAL} GB/s or {_SHARE:.0%} of the yardstick, whichever is less; "
            "both from the page cache",
        )
    ]


def read_the_tail(bench: Bench) -> list[Row]:
    with bench.folder() as folder:
        log = _fill(folder, 100)
        repeats = bench.pick(50, 1)
        try:
            value = median_of(bench.pick(7, 1), lambda: _read_tail(log, repeats))
        finally:
            log.close()
    return [
        Row(
            name="read the hot tail as Arrow, 100 x 1 KB",
            value=value,
            unit="GB/s",
            target=at_least(2),
        )
    ]


def _fill(folder: str, batches: int) -> SegmentedLog:
    log = SegmentedLog(f"{folder}/log", RealDisk(), SystemClock(), LogSettings(tail_bytes=16 << 20))
    batch = ready_batch(100, 1_000)
    for _ in range(batches // 100):
        log.append([batch] * 100)
    return log


def _read_arrow(log: SegmentedLog) -> float:
    """GB/s of going through the whole log by its files."""
    offset, rows, began = log.start_offset, 0, time.perf_counter()
    while offset < log.next_offset:
        entries = log.read_disk(offset, _PIECE)
        for entry in entries:
            rows += entry.record_batch().num_rows
        offset = entries[-1].next_offset
    seconds = time.perf_counter() - began
    assert rows == log.next_offset - log.start_offset
    return log.size / seconds / GB


def _read_raw(folder: str) -> float:
    """GB/s of reading the same files into one buffer, again and again."""
    buffer, size, began = bytearray(_PIECE), 0, time.perf_counter()
    for name in sorted(os.listdir(folder)):
        if name.endswith(LOG):
            with open(f"{folder}/{name}", "rb", buffering=0) as file:
                while read := file.readinto(buffer):
                    size += read
    return size / (time.perf_counter() - began) / GB


def _read_tail(log: SegmentedLog, repeats: int) -> float:
    rows, began = 0, time.perf_counter()
    for _ in range(repeats):
        offset = Offset(0)
        while offset < log.next_offset:
            entries = log.read_tail(offset, _PIECE)
            assert entries, "all of this log is in memory"
            for entry in entries:
                rows += entry.record_batch().num_rows
            offset = entries[-1].next_offset
    seconds = time.perf_counter() - began
    assert rows == repeats * log.next_offset
    return repeats * log.size / seconds / GB
