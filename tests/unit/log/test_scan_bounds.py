"""A bounded read touches no more of the file than what it gives back."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiver.log.disk.real_disk import RealDisk
from quiver.log.segmented_log import SegmentedLog
from quiver.log.settings import LogSettings
from quiver.model.clock import SystemClock
from quiver.model.envelope import seal_batch
from quiver.model.ids import Offset
from quiver.model.schema import PAYLOAD

ENTRY_BYTES = 10_000


class _CountingDisk(RealDisk):
    def __init__(self) -> None:
        super().__init__()
        self.maps = 0

    def map(self, path: str, position: int, length: int) -> memoryview:
        self.maps += 1
        return super().map(path, position, length)


@pytest.mark.parametrize(
    ("bytes_max", "expected"),
    [(0, 1), (1, 1), (ENTRY_BYTES, 1), (2 * ENTRY_BYTES - 1, 1), (2 * ENTRY_BYTES, 2), (10**6, 20)],
)
def test_a_read_gives_what_fits_and_at_least_one_entry_from_one_map(
    tmp_path: Path, bytes_max: int, expected: int
) -> None:
    disk = _CountingDisk()
    settings = LogSettings(index_interval_bytes=4096)
    log = SegmentedLog(str(tmp_path / "log"), disk, SystemClock(), settings)
    log.append([seal_batch(bytes(ENTRY_BYTES - 88), 1, PAYLOAD)] * 20)
    disk.maps = 0
    entries = log.read_disk(Offset(0), bytes_max)
    assert [entry.base_offset for entry in entries] == list(range(expected))
    # An entry that does not fit the window is met first, and then mapped whole.
    assert disk.maps == (2 if bytes_max < ENTRY_BYTES - 4096 else 1)
    log.close()
