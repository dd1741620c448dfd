"""The disk as the log sees it: files that grow at their end, and folders.

``Disk`` is handed to everything that touches storage, so that tests can replace it with one that
loses, tears and corrupts what was not synced. The promises are those of a POSIX file system and no
more: what was written survives a crash only after ``sync``; a file that was created, renamed or
removed stays so only after ``sync_folder`` of its folder. ``RealDisk`` is the operating system.

Failures are ``OSError``. Paths are strings with ``/``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

Bytes = bytes | bytearray | memoryview


class AppendFile(Protocol):
    """A file open for appending by one writer."""

    def append(self, buffers: Sequence[Bytes]) -> None:
        """Write all buffers at the end, in order; on ``OSError`` any part may have been written."""

    def overwrite(self, position: int, data: Bytes) -> None:
        """Write the same bytes again inside the file, so that the next ``sync`` stores them anew."""

    def sync(self) -> None:
        """Make every byte appended so far survive a crash (fdatasync)."""

    def append_synced(self, buffers: Sequence[Bytes]) -> None:
        """``append`` and ``sync``, in one step where the system has one."""
        self.append(buffers)
        self.sync()

    def size(self) -> int: ...

    def truncate(self, size: int) -> None:
        """Cut the file to ``size``; durable after ``sync``. Never while readers may map the tail."""

    def close(self) -> None: ...


class FolderLock(Protocol):
    def release(self) -> None: ...


class Disk(Protocol):
    def make_folder(self, path: str) -> None:
        """Create the folder and its parents, if missing, durably.

        Where one is missing, ``sync_folder`` is done of the folder above it.
        """

    def list_folder(self, path: str) -> list[str]:
        """Names in the folder, sorted; ``FileNotFoundError`` if there is no such folder."""

    def sync_folder(self, path: str) -> None: ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def open_append(self, path: str) -> AppendFile:
        """Open at the end, creating the file if missing."""

    def read(self, path: str) -> bytes:
        """The whole of a small file."""

    def map(self, path: str, position: int, length: int) -> memoryview:
        """A read-only view of ``length`` bytes, memory-mapped, without copying.

        The view stays valid when the file is removed or replaced by ``rename``. Bytes that the
        medium cannot deliver, or that are past the end, raise ``OSError`` here, never later.
        """

    def rename(self, old: str, new: str) -> None:
        """Replace ``new`` by ``old``, atomically."""

    def remove(self, path: str) -> None: ...

    def remove_folder(self, path: str) -> None:
        """Remove a folder and the files in it."""

    def lock(self, path: str, owner: str) -> FolderLock:
        """Take the lock file for this process; ``BlockingIOError(errno, owner_text)`` if held."""

    def free_bytes(self, path: str) -> int: ...
