"""What a program holds of the simulated disk: files open for appending, and locks.

A handle belongs to one lifetime of the process. When that is over the handle is dead: it never
touches the file again, whoever still has it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

from quiver.log.disk.disk import AppendFile, Bytes, FolderLock
from quiver.testing.disk_faults import Hazards
from quiver.testing.simulated_file import SimulatedFile


class Lifetime:
    """The time from the start of the process to its crash."""

    __slots__ = ("over",)

    def __init__(self) -> None:
        self.over = False


class SimulatedAppendFile(AppendFile):
    """Appends to a file, under whatever name it has by now; faults match the name it had at first.

    An append that does not fit in ``unused_bytes`` writes what does, and is ``OSError`` (ENOSPC).
    """

    __slots__ = ("_closed", "_file", "_hazards", "_lifetime", "_path", "_unused_bytes")

    def __init__(
        self,
        file: SimulatedFile,
        path: str,
        hazards: Hazards,
        lifetime: Lifetime,
        unused_bytes: Callable[[], int],
    ) -> None:
        self._file = file
        self._path = path
        self._hazards = hazards
        self._lifetime = lifetime
        self._unused_bytes = unused_bytes
        self._closed = False

    def append(self, buffers: Sequence[Bytes]) -> None:
        data = b"".join(buffers)
        with self._hazards.during("append", self._path, len(data)) as length:
            self._check_open()
            room = self._unused_bytes()
            self._file.write(self._file.size, data[: min(length, room)])
            if length > room:
                raise OSError(errno.ENOSPC, "the simulated disk is full", self._path)

    def overwrite(self, position: int, data: Bytes) -> None:
        data = bytes(data)
        with self._hazards.during("overwrite", self._path, len(data)) as length:
            self._check_open()
            if position < 0 or position + len(data) > self._file.size:
                text = f"{len(data)} bytes at {position} are not inside {self._file.size}"
                raise OSError(errno.EINVAL, text, self._path)
            self._file.write(position, data[:length])

    def sync(self) -> None:
        try:
            with self._hazards.during("sync", self._path):
                self._check_open()
                self._file.sync()
        except OSError:
            if self._is_open():
                self._file.abandon()
            raise

    def size(self) -> int:
        with self._hazards.during("size", self._path):
            self._check_open()
            return self._file.size

    def truncate(self, size: int) -> None:
        with self._hazards.during("truncate", self._path):
            self._check_open()
            if not 0 <= size <= self._file.size:
                raise OSError(errno.EINVAL, f"truncate to {size} of {self._file.size}", self._path)
            self._file.truncate(size)

    def close(self) -> None:
        self._closed = True

    def _is_open(self) -> bool:
        return not self._closed and not self._lifetime.over

    def _check_open(self) -> None:
        if not self._is_open():
            text = "the file was closed" if self._closed else "the file was open during a crash"
            raise OSError(errno.EBADF, text, self._path)


class SimulatedLock(FolderLock):
    """A held lock; releasing it after a crash leaves the lock of the next holder alone."""

    __slots__ = ("_file", "_held")

    def __init__(self, held: dict[SimulatedFile, SimulatedLock], file: SimulatedFile) -> None:
        self._held = held
        self._file = file
        held[file] = self

    def release(self) -> None:
        if self._held.get(self._file) is self:
            del self._held[self._file]
