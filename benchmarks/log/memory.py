"""Memory while far more than fits passes through: appended, read at the tail, read from the disk."""

from __future__ import annotations

import asyncio

import uvloop

from benchmarks.harness.bench import Bench
from benchmarks.harness.row import Row, at_most
from benchmarks.log.subject import GB, MB, open_log, ready_batch
from quiver.log.partition_log import PartitionLog
from quiver.log.retention import RetentionLimits
from quiver.model.batch import UnstoredBatch
from quiver.model.envelope import seal_batch
from quiver.model.ids import Offset

_WRITERS = 16
_KEPT_BYTES = 1 << 30
_LAG_BYTES = 256 << 20
"""How far the second reader is behind: far beyond what stays in memory."""
_READ_BYTES = 1 << 20
_GROWTH_MB_MAX = 50


class _Memory:
    """The process's memory now and at its highest, by kind, from the kernel's own account."""

    def __init__(self) -> None:
        self.first = self._now()
        self.highest = dict(self.first)

    def look(self) -> None:
        for kind, megabytes in self._now().items():
            self.highest[kind] = max(self.highest[kind], megabytes)

    @staticmethod
    def _now() -> dict[str, float]:
        kinds = {}
        with open("/proc/self/status") as status:
            for line in status:
                kind, _, value = line.partition(":")
                if kind in {"RssAnon", "RssFile"}:
                    kinds[kind] = int(value.split()[0]) * 1024 / MB
        return kinds


class _Passage:
    """One log with writers, a reader at its tail, a reader behind, and retention."""

    def __init__(self, log: PartitionLog, total_bytes: int) -> None:
        self.log = log
        self.total_bytes = total_bytes
        self.appended_bytes = 0
        self.read_bytes = 0
        self.largest_bytes = 0
        self.memory: _Memory | None = None

    @property
    def done(self) -> bool:
        return self.appended_bytes >= self.total_bytes

    async def write(self, batch: UnstoredBatch) -> None:
        while not self.done:
            # Each body is memory of its own, as it is when it came from the network.
            body = bytes(bytearray(batch.body))
            entry = await self.log.append(seal_batch(body, batch.count, batch.columns))
            self.appended_bytes += entry.size()

    async def read(self, lag_bytes: int) -> None:
        offset = Offset(0)
        position = 0
        while not self.done:
            if position + lag_bytes >= self.appended_bytes:
                await asyncio.sleep(0.001)
                continue
            entries = await self.log.read(max(offset, self.log.start_offset), _READ_BYTES)
            for entry in entries:
                assert entry.record_batch().num_rows == entry.count
                self.read_bytes += entry.size()
                offset = entry.next_offset
            if entries:
                position = offset // entries[0].count * entries[0].size()

    async def keep_up(self) -> None:
        """Bound the disk, and watch the memory once a first part has warmed everything up."""
        while not self.done:
            await asyncio.sleep(0.02)
            await self.log.retain(RetentionLimits(bytes=_KEPT_BYTES))
            self.largest_bytes = max(self.largest_bytes, self.log.size)
            if self.memory is not None:
                self.memory.look()
            elif self.appended_bytes >= self.total_bytes // 20:
                self.memory = _Memory()


def stay_flat(bench: Bench) -> list[Row]:
    async def run(folder: str) -> _Passage:
        async with open_log(folder) as log:
            passage = _Passage(log, bench.pick(5 * GB, 100 * MB))
            await asyncio.gather(
                *(passage.write(ready_batch(100, 1_000, seed)) for seed in range(_WRITERS)),
                passage.read(0),
                passage.read(_LAG_BYTES),
                passage.keep_up(),
            )
        return passage

    with bench.folder() as folder:
        passage = uvloop.run(run(folder))
    memory = passage.memory or _Memory()
    appended = f"{passage.appended_bytes / GB:.1f} GB appended"
    return [
        Row(
            name=f"growth of own memory, {appended}",
            value=memory.highest["RssAnon"] - memory.first["RssAnon"],
            unit="MB",
            target=at_most(_GROWTH_MB_MAX),
            note=f"{passage.read_bytes / GB:.1f} GB read meanwhile, {memory.first['RssAnon']:.0f} MB "
            f"at first; the log had at most {passage.largest_bytes / GB:.1f} GB on disk",
        ),
        Row(
            name=f"most of mapped files in memory, {appended}",
            value=memory.highest["RssFile"],
            unit="MB",
            note="code and libraries included",
        ),
    ]
