"""What measurements depend on: facts about the machine that say nothing about whose it is."""

from __future__ import annotations

import os
import platform
import statistics
import time

import msgspec
import pyarrow as pa
import uvloop

_SYNCS = 200
_PAGE = bytes(4096)


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    cores: int
    memory_gib: float
    system: str
    kernel: str
    python: str
    pyarrow: str
    uvloop: str
    fdatasync_ms: float
    """Median time to sync an append of 4 KB, one after the other."""
    load: float
    """How many processes wanted a core in the minute before: above 0 something else was running."""


def this_machine(folder: str) -> Machine:
    """Facts about this machine; the sync is timed on the disk that ``folder`` is on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        cores=os.cpu_count() or 1,
        memory_gib=round(memory / 2**30, 1),
        system=f"{platform.system()} {platform.machine()}",
        kernel=platform.release().partition("-")[0],
        python=platform.python_version(),
        pyarrow=pa.__version__,
        uvloop=uvloop.__version__,
        fdatasync_ms=round(fdatasync_seconds(folder) * 1000, 4),
        load=round(os.getloadavg()[0], 1),
    )


def fdatasync_seconds(folder: str, syncs: int = _SYNCS) -> float:
    """Median seconds that a sync takes after an append of 4 KB."""
    path = f"{folder}/fdatasync"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        times = []
        for _ in range(syncs):
            os.write(descriptor, _PAGE)
            began = time.perf_counter()
            os.fdatasync(descriptor)
            times.append(time.perf_counter() - began)
    finally:
        os.close(descriptor)
        os.unlink(path)
    return statistics.median(times)
