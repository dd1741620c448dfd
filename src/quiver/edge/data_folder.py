"""The data folder of a node: one process has it, and that process can read all that is in it."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import structlog

from quiver.errors import FolderInUse, UnsupportedFormat
from quiver.folder_version import (
    FILE,
    FolderVersion,
    decode_version,
    encode_version,
    of_unknown_content,
    used_by_this,
)
from quiver.formats import Format
from quiver.log.disk.disk import Disk, FolderLock
from quiver.log.disk.folder_lock import lock_folder
from quiver.log.files import write_files

_NOTING = "version.lock"
_WAIT_S = 10.0
_POLL_S = 0.005

logger = structlog.get_logger()


def take_folder(disk: Disk, folder: str, needed: Collection[Format] = ()) -> FolderLock:
    """Lock the folder, and note in it that this Quiver uses it.

    The newest version of each ``needed`` format is noted, before anything of it is written.
    ``FolderInUse`` if another process has it. ``UnsupportedFormat`` if a newer Quiver wrote what this
    one cannot read: then nothing was changed.
    """
    lock = lock_folder(disk, folder)
    try:
        found = _found(disk, folder)
        if found is not None and found.unknown:
            raise refused(folder, found)
        using = used_by_this(found, needed)
        if using != found:
            write_files(disk, folder, {FILE: encode_version(using)})
            if found is not None and found.quiver:
                logger.info(
                    "another version used the data folder before",
                    before=found.quiver,
                    version=using.quiver,
                )
    except BaseException:
        lock.release()
        raise
    return lock


def note_formats(disk: Disk, folder: str, needed: Collection[Format]) -> None:
    """Note in a folder that this process has that it may have the newest version of these formats.

    It is to be noted before anything of them is written. Other threads, and other processes that
    share the folder, may do the same at the same moment.
    """
    found = _found(disk, folder)
    if used_by_this(found, needed) == found:
        return
    with _noting(disk, folder):
        found = _found(disk, folder)
        using = used_by_this(found, needed)
        if using != found:
            write_files(disk, folder, {FILE: encode_version(using)})


@contextmanager
def _noting(disk: Disk, folder: str) -> Iterator[None]:
    """One at a time: each reads the file and replaces it."""
    deadline = time.monotonic() + _WAIT_S
    while True:
        try:
            lock = disk.lock(f"{folder}/{_NOTING}", f"process {os.getpid()}")
            break
        except BlockingIOError as held:
            if time.monotonic() >= deadline:
                raise FolderInUse(
                    f"{folder}/{_NOTING} is locked by {held.strerror} for {_WAIT_S:g} s: "
                    "see what keeps its disk from answering",
                    folder=folder,
                ) from held
        time.sleep(_POLL_S)
    try:
        yield
    finally:
        lock.release()


def refused(folder: str, found: FolderVersion) -> UnsupportedFormat:
    return UnsupportedFormat(
        f"{folder} was written by Quiver {found.quiver} and has {', '.join(found.unknown)}: "
        f"use Quiver {found.needs} or later, or restore a backup",
        folder=folder,
        needs=found.needs,
        version=found.quiver,
    )


def _found(disk: Disk, folder: str) -> FolderVersion | None:
    path = f"{folder}/{FILE}"
    if not disk.exists(path):
        return None
    found = decode_version(disk.read(path))
    if found is None:
        logger.warning(
            "the version file of the data folder is damaged and is written anew", file=path
        )
        return of_unknown_content()
    return found
