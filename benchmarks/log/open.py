"""Opening a log that was not closed: what a restart after a crash waits for."""

from __future__ import annotations

import os
import time

from benchmarks.harness.bench import Bench
from benchmarks.harness.rounds import compare, median_of
from benchmarks.harness.row import Row, at_most, ratio_at_most
from benchmarks.log.subject import ready_batch
from quiver.log.disk.disk import AppendFile
from quiver.log.disk.real_disk import RealDisk
from quiver.log.segmented_log import SegmentedLog
from quiver.log.settings import LogSettings
from quiver.model.batch import UnstoredBatch
from quiver.model.clock import SystemClock
from quiver.model.envelope import ENVELOPE_SIZE

_FEW, _MANY = 10, 40
_PER_BATCH = 10_000
_SECONDS_MAX = 1.0
_NOISE = 1.5


def open_after_a_crash(bench: Bench) -> list[Row]:
    return [*_many_segments(bench), _longest_scan(bench)]


def _many_segments(bench: Bench) -> list[Row]:
    """As many messages in few segments and in many, with as much to scan in the last one."""
    batch = ready_batch(_PER_BATCH, 8)
    per_segment = bench.pick(25, 2)
    total = _MANY * per_segment
    with bench.folder() as many, bench.folder() as few:
        _crash(many, batch, per_segment, total)
        per_large = (total - per_segment) // (_FEW - 1)
        _crash(few, batch, per_large, per_large * (_FEW - 1) + per_segment)
        compared = compare(
            bench.pick(9, 1),
            lambda: _open_seconds(bench, many, _MANY),
            lambda: _open_seconds(bench, few, _FEW),
        )
    return [
        Row(
            name=f"open {total * _PER_BATCH:,} messages in {_MANY} segments",
            value=compared.value,
            unit="s",
            target=at_most(_SECONDS_MAX),
            note="after a crash, with none of it in the page cache",
        ),
        Row(
            name=f"the same against {_FEW} segments",
            value=compared.value,
            unit="s",
            yardstick=compared.yardstick,
            yardstick_name=f"{_FEW} segments",
            ratio=compared.ratio,
            target=ratio_at_most(_NOISE),
            note="opening is not to depend on how many segments there are; the rest is noise",
        ),
    ]


def _longest_scan(bench: Bench) -> Row:
    """All that fits between two checkpoints, one message in each entry."""
    batch = ready_batch(1, 1_000)
    size = bench.pick(LogSettings().checkpoint_bytes, 1 << 20)
    with bench.folder() as folder:
        count = size // (ENVELOPE_SIZE + len(batch.body)) - 1
        _crash(folder, batch, count + 1, count)
        seconds = median_of(bench.pick(9, 1), lambda: _open_seconds(bench, folder, 1))
    return Row(
        name=f"open with {size >> 20} MiB to scan, {count:,} entries",
        value=seconds,
        unit="s",
        target=at_most(_SECONDS_MAX),
        note="as far as two checkpoints are apart by default; none of it in the page cache",
    )


def _crash(folder: str, batch: UnstoredBatch, per_segment: int, total: int) -> None:
    """Fill a log, and leave it as a process that died would."""
    entry = ENVELOPE_SIZE + len(batch.body) + (-len(batch.body) & 7)
    disk = _AbandonedDisk()
    settings = LogSettings(segment_bytes=per_segment * entry)
    log = SegmentedLog(f"{folder}/log", disk, SystemClock(), settings)
    for first in range(0, total, 100):
        log.append([batch] * min(100, total - first))
    disk.abandon()


def _open_seconds(bench: Bench, crashed: str, segments: int) -> float:
    """Seconds to open a copy of the log that was left in ``crashed``.

    The files are the same under other names: opening replaces small files and adds to none.
    """
    with bench.folder() as folder:
        os.mkdir(f"{folder}/log")
        for name in os.listdir(f"{crashed}/log"):
            _drop_from_cache(f"{crashed}/log/{name}")
            os.link(f"{crashed}/log/{name}", f"{folder}/log/{name}")
        began = time.perf_counter()
        log = SegmentedLog(f"{folder}/log", RealDisk(), SystemClock(), LogSettings())
        seconds = time.perf_counter() - began
        assert len(log._segments) == segments
        assert not log.recovery_cut_bytes
        log.close()
    return seconds


def _drop_from_cache(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


class _AbandonedDisk(RealDisk):
    """A disk whose files can be let go of all at once, without a word to the log."""

    def __init__(self) -> None:
        super().__init__()
        self._files: list[AppendFile] = []

    def open_append(self, path: str) -> AppendFile:
        self._files.append(super().open_append(path))
        return self._files[-1]

    def abandon(self) -> None:
        for file in self._files:
            file.close()
