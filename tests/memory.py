"""Temporary folders in memory, where there is room: a test's node need not wait for a disk.

What is on it outlives a killed process as it would on a disk. Power cuts have volumes of their own
(``tests/power.py``), and so have tests of the disk itself (``tests/unit/log/disk``).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

MEMORY = Path("/dev/shm")
ROOM_BYTES_MIN = 8 << 30
"""All tests together need less than a quarter of it."""


def has_room() -> bool:
    """Whether programs may be put and run there, and memory is not needed for anything else."""
    if not os.access(MEMORY, os.W_OK):
        return False
    status = os.statvfs(MEMORY)
    available = re.search(r"^MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text(), re.M)
    free_bytes = min(status.f_bavail * status.f_frsize, int(available[1]) << 10 if available else 0)
    return not status.f_flag & os.ST_NOEXEC and free_bytes >= ROOM_BYTES_MIN


def put_temporary_folders_in_memory() -> None:
    if has_room():
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
