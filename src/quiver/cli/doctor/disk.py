"""Checks of the disk under the data folder: free space, and whether a sync is real."""

from __future__ import annotations

import os
import statistics
import tempfile
import time

from quiver.cli.doctor.finding import Finding, failure, ok, warning
from quiver.cli.support.text import shown_bytes
from quiver.config import NodeConfig

_SYNCS = 20
_HONEST_S = 50e-6
"""No disk syncs 4 KiB in less time, not even with a battery-backed cache."""
_SLOW_S = 0.05
_MEMORY = {"tmpfs", "ramfs"}


def free_space(config: NodeConfig) -> Finding:
    found = os.statvfs(_existing(config.data))
    free = found.f_bavail * found.f_frsize
    least = config.limits.free_bytes_min
    message = f"{shown_bytes(free)} free on the disk of {config.data}"
    if free < least:
        return failure(
            "disk space", message, f"publishing needs {shown_bytes(least)}: free some space"
        )
    if free < 4 * least:
        return warning("disk space", message, f"publishing stops below {shown_bytes(least)}")
    return ok("disk space", message)


def sync(config: NodeConfig) -> Finding:
    """How long a sync takes, and whether that is plausible. Writes 4 KiB a few times."""
    folder = _existing(config.data)
    if (kind := _filesystem(folder)) in _MEMORY:
        return warning(
            "sync",
            f"{folder} is on {kind}: its data is lost when the machine stops",
            "put the data folder on a disk",
        )
    try:
        took_s = statistics.median(_sync_times(folder))
    except OSError as error:
        return failure(
            "sync", f"{folder} cannot be written: {error.strerror}", "choose another --data"
        )
    shown = f"a sync takes {took_s * 1e3:.2f} ms"
    if took_s < _HONEST_S:
        return warning(
            "sync",
            f"{shown}, too fast for a real one: the disk may only claim to sync",
            "check whether the disk or its host ignores flushes; a power cut could lose messages",
        )
    if took_s > _SLOW_S:
        return warning(
            "sync", f"{shown}, which is slow: publishes wait for it", "use a faster disk"
        )
    return ok("sync", shown)


def _sync_times(folder: str) -> list[float]:
    times = []
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".doctor-") as file:
        for _ in range(_SYNCS):
            os.write(file.fileno(), bytes(4096))
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - began)
    return times


def _existing(folder: str) -> str:
    """The folder, or the nearest one above it that is there."""
    folder = os.path.abspath(folder)
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return folder


def _filesystem(folder: str) -> str:
    """The kind of the filesystem that a folder is on, where the system tells."""
    best, kind = "", ""
    try:
        with open("/proc/mounts") as mounts:
            for line in mounts:
                _, point, of_kind, *_ = line.split(" ")
                inside = os.path.commonpath([folder, point]) == point
                if inside and len(point) >= len(best):
                    best, kind = point, of_kind
    except (OSError, ValueError):
        return ""
    return kind
