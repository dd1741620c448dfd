"""The files of a log's folder and how the small ones are replaced.

    00000000000000000000.log         entries from offset 0 on, back to back
    00000000000000000000.index       offset → position, sparse
    00000000000000000000.timeindex   append time → position, sparse
    00000000000000000000.delivery    priorities, delays and expiries, where the segment has any
    00000000000000250000.log         the next segment, named for its first offset
    checkpoint                       where recovery starts, and the first offset kept

Small files are written beside their place and renamed into it, so that one is there whole or not at
all. A name that ends in ``.new`` is a leftover of a crash and means nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from quiver.errors import CorruptLog
from quiver.log.disk.disk import Disk
from quiver.model.ids import Offset

CHECKPOINT = "checkpoint"
LOG, INDEX, TIME_INDEX, DELIVERY = ".log", ".index", ".timeindex", ".delivery"
UNFINISHED = ".new"
SUFFIXES = (LOG, INDEX, TIME_INDEX, DELIVERY)
_OURS = re.compile(r"\d{20}\.(log|index|timeindex|delivery)(\.new)?|checkpoint\.new", re.ASCII)
"""Names that only a log gives, other than the checkpoint's: such a file may be removed."""


def segment_name(base_offset: Offset, suffix: str = LOG) -> str:
    return f"{base_offset:020d}{suffix}"


def segment_path(folder: str, base_offset: Offset, suffix: str = LOG) -> str:
    return f"{folder}/{segment_name(base_offset, suffix)}"


def segment_offsets(names: list[str]) -> list[Offset]:
    """The first offsets of the segments among these file names, in order."""
    return sorted(
        Offset(int(stem))
        for stem, dot, kind in (name.partition(".") for name in names)
        if dot + kind == LOG and len(stem) == 20 and stem.isascii() and stem.isdigit()
    )


def write_files(disk: Disk, folder: str, files: dict[str, bytes]) -> None:
    """Replace whole files, each atomically, and all of them durably when this returns."""
    for name, content in files.items():
        unfinished = f"{folder}/{name}{UNFINISHED}"
        if disk.exists(unfinished):
            disk.remove(unfinished)
        file = disk.open_append(unfinished)
        try:
            file.append([content])
            file.sync()
        finally:
            file.close()
        disk.rename(unfinished, f"{folder}/{name}")
    disk.sync_folder(folder)


def remove_files(disk: Disk, paths: Iterable[str]) -> None:
    """Remove those that are there; durable after ``sync_folder``."""
    for path in paths:
        if disk.exists(path):
            disk.remove(path)


def remove_strays(disk: Disk, folder: str, names: list[str], bases: list[Offset]) -> None:
    """Remove what a crash left behind: unfinished files, and files of segments that are gone.

    The folder is synced first: files may only go once the checkpoint that condemns them is durable.
    """
    kept = {f"{base:020d}{suffix}" for base in bases for suffix in SUFFIXES}
    strays = [name for name in names if _OURS.fullmatch(name) and name not in kept]
    if strays:
        disk.sync_folder(folder)
        remove_files(disk, [f"{folder}/{name}" for name in strays])


def map_entries(disk: Disk, path: str, position: int, length: int) -> memoryview:
    """Map a piece of a segment; what the medium cannot deliver is ``CorruptLog``, named."""
    try:
        return disk.map(path, position, length)
    except OSError as error:
        raise CorruptLog(
            f"{path} cannot be read at {position:,}: {error.strerror or error}; "
            "restore the file, or rebuild this replica from a peer",
            file=path,
            position=position,
        ) from error
