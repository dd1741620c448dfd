"""A data folder belongs to one process at a time."""

from __future__ import annotations

import os
import socket

from quiver.errors import FolderInUse
from quiver.log.disk.disk import Disk, FolderLock

LOCK = "lock"


def lock_folder(disk: Disk, folder: str) -> FolderLock:
    """Take the folder, made if it is missing, for this process; ``FolderInUse`` names who has it."""
    disk.make_folder(folder)
    try:
        return disk.lock(f"{folder}/{LOCK}", f"process {os.getpid()} on {socket.gethostname()}")
    except BlockingIOError as held:
        raise FolderInUse(
            f"{folder} is in use by {held.strerror or 'another process'}; "
            "stop it first, or choose another folder",
            folder=folder,
        ) from held
