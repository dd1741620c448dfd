"""How the processes that share one metadata file wake each other, and know who lives.

Each has a named pipe in a folder beside the file, which it keeps open for reading. Who has committed
something writes a byte into the pipes of the others. The kernel closes a pipe when its process ends,
however that ends: a pipe that nobody reads belongs to a process that is gone.
"""

from __future__ import annotations

import contextlib
import os

_READ_BYTES = 4096
_PRIVATE, _PRIVATE_FOLDER = 0o600, 0o700


class WakeFiles:
    """``number`` tells this process from all that ever opened the file. ``close`` it at the end."""

    def __init__(self, folder: str, number: int) -> None:
        """Called while nobody else can open or clean up: under the lock of the metadata file."""
        self._folder = folder
        self._number = number
        os.makedirs(folder, _PRIVATE_FOLDER, exist_ok=True)
        path = self._path(number)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # of an opening that failed before it was counted
        os.mkfifo(path, _PRIVATE)
        # Also for writing: a pipe whose last writer closes it would be readable from then on.
        self.descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def is_alive(self, number: int) -> bool:
        """Whether the process with this number still has the file open."""
        try:
            os.close(self._opened(number))
        except OSError:  # there is no such pipe, or nobody reads it
            return False
        return True

    def wake_others(self) -> None:
        for number in self._numbers():
            if number == self._number:
                continue
            with contextlib.suppress(OSError):  # it is gone, or has not taken what came before
                pipe = self._opened(number)
                try:
                    os.write(pipe, b"\0")
                finally:
                    os.close(pipe)

    def take(self) -> None:
        """Take what others have written."""
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self.descriptor, _READ_BYTES)) == _READ_BYTES:
                pass

    def remove_dead(self) -> None:
        """Called under the lock of the metadata file."""
        for number in self._numbers():
            if not self.is_alive(number):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._path(number))

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path(self._number))

    def _numbers(self) -> list[int]:
        return [int(name) for name in os.listdir(self._folder) if name.isdecimal()]

    def _opened(self, number: int) -> int:
        return os.open(self._path(number), os.O_WRONLY | os.O_NONBLOCK)

    def _path(self, number: int) -> str:
        return os.path.join(self._folder, str(number))
