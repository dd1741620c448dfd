"""Asks the kernel to write pages of a file to the disk, and does not wait for it.

A large write that is synced at its end lets the disk idle while the processor copies, and then the processor
while the disk writes. With this the disk begins with the first pages: half the time for 16 MB, for the same
processor time. It promises nothing, and no error is lost: a sync afterwards waits for all, and reports them.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

_WRITE = 2
"""SYNC_FILE_RANGE_WRITE: begin to write what is not being written yet."""


def _nothing(descriptor: int, position: int, length: int) -> None:
    """The system has no such call."""


def _linux() -> Callable[[int, int, int], None]:
    call = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if call is None:
        return _nothing
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)

    def start(descriptor: int, position: int, length: int) -> None:
        call(descriptor, position, length, _WRITE)

    return start


start_writeback: Callable[[int, int, int], None] = _linux() if sys.platform == "linux" else _nothing
"""For a descriptor: the pages from a position on, so many bytes of them."""
