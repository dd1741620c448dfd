"""How much memory this process may use: that of the machine, or less where a cgroup limits it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

_UNLIMITED = 1 << 60
"""Limits of cgroups from here on mean that there is none."""
_UNKNOWN = 1 << 30
"""What is assumed where the system does not tell."""


class ProcessMemory(msgspec.Struct, frozen=True):
    size: int
    """In bytes."""
    source: Literal["machine", "cgroup", "unknown"]


def process_memory(root: str = "") -> ProcessMemory:
    """Read from the files below ``root``. Whatever cannot be read limits nothing."""
    total = _total(_text(f"{root}/proc/meminfo"))
    limits = list(_cgroup_limits(root))
    if limits and (total is None or min(limits) < total):
        return ProcessMemory(min(limits), "cgroup")
    return ProcessMemory(_UNKNOWN, "unknown") if total is None else ProcessMemory(total, "machine")


def _total(meminfo: str) -> int | None:
    for line in meminfo.splitlines():
        name, _, value = line.partition(":")
        if name == "MemTotal":
            return int(value.split()[0]) * 1024
    return None


def _cgroup_limits(root: str) -> Iterator[int]:
    """The limits of the process's own cgroup and of all above it, of version 1 and 2."""
    names: tuple[str, ...]
    for line in _text(f"{root}/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mount, names = f"{root}/sys/fs/cgroup", ("memory.max", "memory.high")
        elif "memory" in controllers.split(","):
            mount, names = f"{root}/sys/fs/cgroup/memory", ("memory.limit_in_bytes",)
        else:
            continue
        for folder in _upwards(path):
            for name in names:
                text = _text(f"{mount}{folder}/{name}").strip()
                if text.isdigit() and int(text) < _UNLIMITED:
                    yield int(text)


def _upwards(path: str) -> Iterator[str]:
    """``/a/b``, ``/a`` and the top. In a container the top may be the only one that is there."""
    folder = path.rstrip("/")
    while folder:
        yield folder
        folder = folder.rpartition("/")[0]
    yield ""


def _text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
